"""Write the stubs, which editors and the reference read: `python docs/write_stubs.py`.

The classes are made at run time, so an editor finds neither their arguments nor their docstrings in
the source. This script takes both from the classes themselves, and the types from the table in
`ranges.py` and from the tables below.
It writes the stubs of those Keras of `VERSIONS` that are installed. After `nox -r -s rest`, which
makes the environments, these two lines write all stubs:

    .nox/tf_keras/bin/python docs/write_stubs.py
    .nox/keras2-keras-2-2-4/bin/python docs/write_stubs.py

`tests/package/test_stubs.py` fails where a stub isn't what this script makes.
"""

import importlib
import inspect
import sys
import textwrap
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))  # before an installed keras_accum, which can be older

import keras_accum  # noqa: E402
from keras_accum import host, names, ranges  # noqa: E402
from keras_accum.base import Optimizer  # noqa: E402

# What the stubs are made from. Another version of a Keras can have other arguments.
VERSIONS = {"keras3": ("keras", 3, 15), "tf_keras": ("tf_keras", 2, 21), "keras2": ("keras", 2, 2)}

# -- types ---------------------------------------------------------------------------------------


_KINDS = {"float": "float", "integer": "int", "boolean": "bool", "list of strings": "list[str]"}
_KINDS["list of functions"] = "Sequence[Callable[..., Any]]"


def _types(entries):
    """{argument: type} for entries of the table in `ranges.py`."""
    return {name: _type(entry) for name, entry in entries.items()}


def _type(entry):
    choices = ranges.choices_of(entry)
    if choices:
        return "Literal[{}]".format(", ".join(f'"{choice}"' for choice in choices))
    kind = next(kind for kind in _KINDS if entry.startswith(kind))
    return _KINDS[kind] + (" | None" if "None" in entry else "")


_RATE = "float | LearningRateSchedule | Callable[[], float]"
_SKIP = "float | Callable[[Any], Any] | None"
_TENSORS = "float | LearningRateSchedule | Callable | tf.Tensor | tf.Variable"
_OPTIMIZERS = "keras.optimizers.Optimizer | keras.optimizers.legacy.Optimizer"

# The type of each argument. Those of the table in `ranges.py` are derived.
ARGUMENTS = {
    **_types(ranges.entries("keras3")),
    "skip_norm": _SKIP,
    "learning_rate": _RATE,
    "lr": f"{_RATE} | None",
    "decay": "float | None",
    "name": "str | None",
    "gradient_accumulation_steps": "int | None",
    "gradient_aggregator": "Callable[..., Any] | None",
    "gradient_transformers": "Sequence[Callable[..., Any]] | None",
    "lengths": "Mapping[int, int] | Sequence[Sequence[int]]",
    # of callbacks
    "callbacks": "Sequence[keras.callbacks.Callback]",
    "batch_size": "int | None",
    "noise_scale": "bool",
    "smoothing": "float",
    "maximum": "int",
    "show": "Sequence[str]",
    "size": "int",
    "loss": 'Literal["sample", "batch"]',
    # of methods and functions
    **dict.fromkeys(("args", "kwargs", "arguments"), "Any"),
    "weight": "Any",  # a number or a tensor
    "when": "Any",  # a boolean or a tensor
    "is_update": "bool",
    "state": "Mapping[str, Any]",
    "optimizer": "keras.optimizers.Optimizer",
    "stock": "bool",
    "optimizer_class": "type[keras.optimizers.Optimizer]",
    "model": "keras.Model",
}

# The arguments of constructors only.
OF_OPTIMIZERS = {"accum_iters": "int | AccumulationSchedule | Callable[[Any], Any] | None"}
# The arguments whose type is another one in a class, and on a host.
OF_CLASS = {"MicroBatchWeights": {"weight": "Callable[..., Any] | None"}}
# The methods of a callback that aren't Keras's, with the types of what they return.
OF_CALLBACKS = {"AccumulateInBackward": {"scope": "ContextManager[None]"}}
OF_HOST = {
    "keras3": {},
    "tf_keras": {
        "learning_rate": _TENSORS,
        "lr": f"{_TENSORS} | None",
        "optimizer": _OPTIMIZERS,
        "optimizer_class": f"type[{_OPTIMIZERS}]",
    },
    "keras2": {
        **_types(ranges.EXCEPTIONS["keras2"]),
        "learning_rate": "float | None",
        "lr": "float | None",
    },
}

# The base class of each layer.
LAYERS = {"WindowBatchNormalization": "keras.layers.BatchNormalization"}

_OPTIONS = "reduction", "skip_nonfinite", "skip_norm", "window_transforms", "gate", "all_reduce"

# The members that optimizers have beside those of their stock optimizers, with the types of what
# they return; None is the type of the argument.
MEMBERS = {
    **dict.fromkeys(_OPTIONS, None),
    "decay": "float",
    # None only with accum_iters=None. With `int | None`, editors would object to all arithmetic.
    "accum_iters": "int | Any",
    **dict.fromkeys(("window_position", "completed_updates"), "int"),
    **dict.fromkeys(("learning_rate", "lr"), "Any"),  # a variable of the host
    **dict.fromkeys(("apply_partial_window", "close_window", "decide", "weigh"), "None"),
    "get_state": "dict[str, Any]",  # arrays: with their type, `np.savez(file, **state)` is refused
    "set_state": "None",
    "from_optimizer": "Self",
    "to_stock": "{stock}",
    "with_accum_iters": "Any",  # what `custom_objects` takes for a class
}

# -- text ----------------------------------------------------------------------------------------

INDENT = " " * 4
WIDTH = 100

_HEAD = """\
{docstring}
# Made by `python docs/write_stubs.py` from {made_from}. Don't edit this file.
"""

_PACKAGE = """
# `keras_accum` has the names of the Keras in use. An editor doesn't know which Keras that is, so
# these are the names of Keras 3. For another Keras, import from its own module.
{imports}

__version__: str
__all__ = [
    {names},
]
"""

_IMPORTS = {
    "keras3": """
from typing import Any, Callable, ContextManager, Literal, Mapping, Sequence

import keras
from keras.optimizers.schedules import LearningRateSchedule
from typing_extensions import Self
""",
    "tf_keras": """
from typing import Any, Callable, Literal, Mapping, Sequence

import tensorflow as tf
import tf_keras as keras
from tf_keras.optimizers.schedules import LearningRateSchedule
from typing_extensions import Self
""",
    "keras2": """
from typing import Any, Callable, Literal, Mapping, Sequence

import keras
from typing_extensions import Self
""",
}

_SHARED = "The members that every optimizer of this package adds to those of its stock optimizer."


def main():
    write("", package_stub())
    for module, (keras, *version) in VERSIONS.items():
        found = host._installed_version(keras)
        if found == tuple(version):
            write(module, host_stub(module))
        else:
            print(f"{module}: not written. It needs {_dotted(keras, *version)}. Found: {found}")


def _dotted(keras, *version):
    return f"{keras} {'.'.join(map(str, version))}"


def write(folder, text):
    path = PROJECT / "keras_accum" / folder / "__init__.pyi"
    path.write_text(text, encoding="utf-8")
    print(path)


def package_stub():
    """The stub of `keras_accum` itself."""
    public = keras_accum.__all__
    in_order = sorted(public, key=lambda name: (name[0].islower(), name.lower()))  # as ruff sorts
    head = _HEAD.format(docstring=_quoted(keras_accum), made_from="keras_accum/names.py")
    return head + _PACKAGE.format(
        # With `as`, which says that a name is public.
        imports="\n".join(f"from keras_accum.keras3 import {n} as {n}" for n in in_order),
        names=",\n    ".join(f'"{name}"' for name in public),
    )


def host_stub(host_name):
    """The stub of a host's module."""
    module = importlib.import_module(f"keras_accum.{host_name}")
    types = {**ARGUMENTS, **OF_HOST[host_name]}
    public = {name: vars(module)[name] for name in names.WHERE if name in vars(module)}
    classes = {name: value for name, value in public.items() if isinstance(value, type)}
    optimizers = {name: cls for name, cls in classes.items() if issubclass(cls, Optimizer)}
    callbacks = {n: c for n, c in classes.items() if issubclass(c, module.keras.callbacks.Callback)}
    # The base class for each kind of stock optimizers, with an example of its subclasses.
    examples = {cls.__bases__[0]: cls for cls in optimizers.values()}
    # The name of a base class that the module doesn't have begins with `_`.
    bases = {
        base: base.__name__ if hasattr(module, base.__name__) else f"_{base.__name__}"
        for base in examples
    }
    made = f"type[{' | '.join(bases.values())}]"
    parts = [
        _HEAD.format(docstring=_quoted(module), made_from=_dotted(*VERSIONS[host_name])),
        _IMPORTS[host_name],
        "\nfrom keras_accum.schedule import AccumulationSchedule as AccumulationSchedule\n",
        "from keras_accum.states import StateError as StateError\n\n",
    ]
    parts += [_base(name, base, examples[base], types) for base, name in bases.items()]
    for name, cls in optimizers.items():
        stock = _path(cls._stock_class, cls._stock_class.__name__)
        of_class = {**types, **OF_OPTIMIZERS}
        parts.append(_class(name, cls, f"{bases[cls.__bases__[0]]}, {stock}", of_class))
    for name, cls in callbacks.items():
        parts.append(_class(name, cls, "keras.callbacks.Callback", types))
    for name, cls in classes.items():
        if name in LAYERS:
            parts.append(_class(name, cls, LAYERS[name], types))
    parts.append(_documented(module.accumulating, "accumulating", made, types))
    if "with_window_statistics" in public:
        function = public["with_window_statistics"]
        parts.append(_documented(function, function.__name__, "keras.Model", types))
    return "".join(parts).rstrip("\n") + "\n"


def _base(name, base, example, types):
    of_stock = _path(example._stock_class, "Optimizer")
    init = _function(inspect.signature(base.__init__), "__init__", "None", types)
    results = {name: result or types[name] for name, result in MEMBERS.items()}
    members = [
        _member(inspect.getattr_static(base, member), member, result.format(stock=of_stock), types)
        for member, result in results.items()
        if hasattr(base, member)
    ]
    header = f"class {name}({of_stock}):"
    return _block(header, f'"""{_SHARED}"""\n\n', init, *members)


def _class(name, cls, bases, types):
    signature = inspect.signature(cls)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = signature.replace(parameters=[this, *signature.parameters.values()])
    init = _function(signature, "__init__", "None", {**types, **OF_CLASS.get(name, {})})
    members = [
        _member(inspect.getattr_static(cls, member), member, result, types)
        for member, result in OF_CALLBACKS.get(name, {}).items()
    ]
    block = _block(f"class {name}({bases}):", _quoted(cls) + "\n", init, *members)
    return block.rstrip("\n") + "\n\n"


def _path(stock, name):
    legacy = ".legacy" if ".legacy." in stock.__module__ else ""
    return f"keras.optimizers{legacy}.{name}"


def _member(member, name, result, types):
    if isinstance(member, property):
        getter = "@property\n" + _documented(member.fget, name, result, types)
        if member.fset is None:
            return getter
        setter = _function(inspect.signature(member.fset), name, "None", types)
        return f"{getter}@{name}.setter\n{setter}"
    if isinstance(member, classmethod):
        return "@classmethod\n" + _documented(member.__func__, name, result, types)
    return _documented(member, name, result, types)


def _documented(function, name, result, types):
    header = _function(inspect.signature(function), name, result, types)
    return _block(header[: -len(" ...\n")], _quoted(function)) + "\n"


def _function(signature, name, result, types):
    """The stub of a function without a docstring."""
    parts, is_keyword_only = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            parts.append("*")
            is_keyword_only = True
        parts.append(_parameter(parameter, types))
    line = f"def {name}({', '.join(parts)}) -> {result}: ...\n"
    if len(INDENT + line) <= WIDTH:
        return line
    parts = "".join(f"{INDENT}{part},\n" for part in parts)
    return f"def {name}(\n{parts}) -> {result}: ...\n"


_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _parameter(parameter, types):
    name = parameter.name
    if name in ("self", "cls"):
        return name
    if name not in types:
        sys.exit(f"The argument `{name}` has no type. Give it one in `ARGUMENTS`.")
    text = f"{_STARS.get(parameter.kind, '')}{name}: {types[name]}"
    if parameter.default is parameter.empty:
        return text
    default = parameter.default
    return f"{text} = " + repr(default).replace("'", '"')


def _quoted(documented):
    docstring = inspect.getdoc(documented)
    end = "\n" if "\n" in docstring else ""
    return f'"""{docstring}{end}"""\n'


def _block(header, *parts):
    return "".join([header + "\n", *(textwrap.indent(part, INDENT) for part in parts)])


if __name__ == "__main__":
    main()
