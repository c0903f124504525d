"""The constructor arguments that all hosts share: checks, aliases and signatures.

A class takes the arguments of its stock optimizer in their order, and then the arguments of `OWN`
by keyword. No host is imported here.
"""

import contextlib
import contextvars
import difflib
import inspect
import math
import numbers
import struct
import warnings

from keras_accum import ranges, schedule
from keras_accum.ranges import is_number, refusal
from keras_accum.warn import warn

# Our arguments and their defaults. None leaves the default to the host.
OWN = {
    **{name: ranges.default_of(entry) for name, entry in ranges.OURS.items()},
    "lr": None,
    "decay": None,
}
REDUCTIONS = ranges.choices_of(ranges.OURS["reduction"])
GATES = ranges.choices_of(ranges.OURS["gate"])
ALL_REDUCES = ranges.choices_of(ranges.OURS["all_reduce"])
# Values of version 0.1. They work until version 0.3.
RENAMED = {
    "gate": {"arithmetic": "select", "branch": "conditional"},
    "all_reduce": {"micro_batch": "per_micro_batch", "window": "per_window"},
}
# How the hosts begin their message about an unknown keyword, by the type of their error.
_UNKNOWN = {
    ValueError: "Argument(s) not recognized",
    TypeError: "Unexpected keyword argument passed to optimizer",
}


def signature(stock, fixed, more):
    """Return the signature of `stock` without the `fixed` arguments, but with `OWN` and `more`.

    `more` is {name: default}.
    """
    own = {name: default for name, default in {**OWN, **more}.items() if name not in fixed}
    of_stock = parameters_of(stock)
    taken = {*of_stock, *more} & set(OWN) - {"lr", "decay"}
    if taken:
        raise TypeError(
            f"{stock.__name__} takes arguments that every accumulating optimizer has: "
            f"{', '.join(sorted(taken))}. Rename them in a subclass of it."
        )
    parameters = [
        # The stock default would be the name of the stock class.
        parameter.replace(default=None) if name == "name" else parameter
        for name, parameter in of_stock.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in fixed
    ]
    # In Keras 2.2, lr and decay are stock arguments, and stay where they are.
    stock_names = {parameter.name for parameter in parameters}
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in own.items()
        if name not in stock_names
    ]
    return inspect.Signature(parameters)


def parameters_of(stock):
    """Return the parameters of a constructor by name, without `self`.

    A constructor with `*args` passes them on: the parameters of the next class take their place.
    """
    found = []
    for cls in stock.__mro__:
        if "__init__" in vars(cls):
            parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
            own = [p for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
            known = {parameter.name for parameter in found}
            new = [parameter for parameter in own if parameter.name not in known]
            # By position, a required argument can't come after one with a default.
            if _defaults(found).count(True) and _defaults(new).count(False):
                new = [
                    p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY) for p in new
                ]
            found += new
            if len(own) == len(parameters):
                break
    return {p.name: p for p in sorted(found, key=lambda parameter: parameter.kind)}


def keywords_of(stock):
    """Return {keyword: default} of what a class takes as **kwargs: arguments of its parents.

    None is also the default of an argument without one: the class may set the argument itself.
    """
    own, found = parameters_of(stock), {}
    for cls in stock.__mro__[:-1]:
        if "__init__" in vars(cls):
            parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
            for p in parameters:
                if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in own:
                    has_default = p.default is not p.empty and p.name != "name"
                    found.setdefault(p.name, p.default if has_default else None)
            if all(p.kind is not p.VAR_KEYWORD for p in parameters):
                break
    return found


def name_after(cls, name, given):
    """Name an optimizer after its class, if its stock class leaves the name to its users."""
    if "name" in parameters_of(cls._stock_class):
        given.setdefault("name", name)


def _defaults(parameters):
    """Return for each parameter that can be given by position whether it has a default."""
    by_position = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return [p.default is not p.empty for p in by_position]


def bind(cls, args, kwargs, unknown):
    """Return the arguments of a call by name, checked, and with `lr` as `learning_rate`.

    `unknown` is the type of error that the stock class raises for an unknown keyword. Older code
    writes None for some defaults of the host: these arguments are left out.
    """
    parameters = cls.__signature__.parameters
    strange = {name: value for name, value in kwargs.items() if name not in parameters}
    if strange:
        elsewhere = cls._port.elsewhere
        known = [f"{elsewhere[name]} " for name in strange if name in elsewhere]
        hint = known[0] if known else _did_you_mean(strange, parameters)
        raise unknown(
            f"{_UNKNOWN[unknown]}: {strange}. {hint}{cls.__name__} takes {', '.join(parameters)}."
        )
    _check_positions(cls, args)
    given = dict(cls.__signature__.bind(*args, **kwargs).arguments)
    for name in ("learning_rate", "lr"):
        _check_no_optimizer(cls, name, given.get(name))
    lr = given.pop("lr", None)
    if lr is not None:
        if given.get("learning_rate") is not None:
            raise ValueError(
                "`lr` is another name of `learning_rate`: give only one of the two. "
                f"Received: lr={lr}, learning_rate={given['learning_rate']}"
            )
        # An integer is a number for Keras 2, but not for Keras 3.
        given["learning_rate"] = float(lr) if is_number(lr) else lr
    given = {
        name: value
        for name, value in given.items()
        if value is not None or name not in ("decay", "epsilon", "name")
    }
    check_ranges(cls, given)
    return given


_checks = contextvars.ContextVar("checks", default=True)


def check_ranges(cls, given):
    """Raise a TypeError or ValueError if an argument is out of its range."""
    if _checks.get():
        # A default of None can also mean that the host has a default.
        defaults = {name: p.default for name, p in cls.__signature__.parameters.items()}
        said = {n: v for n, v in given.items() if v is not None or defaults.get(n) is not None}
        ranges.check(cls._stock_class, said)


@contextlib.contextmanager
def unchecked():
    """Check no ranges in this context: an older version may have written any value to a config."""
    token = _checks.set(False)
    try:
        yield
    finally:
        _checks.reset(token)


def _check_positions(cls, args):
    """Raise an error if there are too many arguments by position, or one reads like `accum_iters`.

    `accum_iters` is taken by keyword only: Adam...(5) and Adam...(0.001, 5) mean something else.
    """
    parameters = cls.__signature__.parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names):
        received = ", ".join(map(repr, args[len(names) :]))
        raise TypeError(
            f"{cls.__name__} takes at most {len(names)} arguments by position, which are "
            f"{', '.join(names)}. Give all others by keyword, such as `accum_iters=5`. "
            f"Received in addition: {received}"
        )
    for place, (name, value) in enumerate(zip(names, args)):
        is_count = isinstance(value, numbers.Integral) and value > 1
        is_rate = name in ("learning_rate", "lr") and ranges.is_of_keras(cls._stock_class)
        if place == 0 and is_count and is_rate:
            raise ValueError(
                f"The first argument is `{name}`. Did you mean `accum_iters={value}`? For a "
                f"learning rate of {value}, write `{name}={float(value)}`. "
                f"Received: {cls.__name__}({value!r})"
            )
        allowed = ranges.refused_range(cls._stock_class, name, value) if is_count else None
        if allowed is not None:
            received = ", ".join(map(repr, args[: place + 1]))
            raise ValueError(
                f"Argument {place + 1} is `{name}`, and its range is: {allowed}. Did you mean "
                f"`accum_iters={value}`? Received: {cls.__name__}({received})"
            )


def _check_no_optimizer(cls, name, value):
    """Raise a TypeError if an optimizer, or a class of them, is in the place of the rate."""
    if hasattr(value, "apply_gradients") or hasattr(value, "get_updates"):
        raise TypeError(
            f"`{name}` must be a learning rate, and not an optimizer. {cls.__name__} is a whole "
            f"optimizer: {cls.__name__}(0.001, accum_iters=5). For the arguments and the state of "
            f"another optimizer, call {cls.__name__}.from_optimizer(optimizer, accum_iters=5). "
            f"Received: {name}={value!r}"
        )


def _did_you_mean(strange, known):
    """Return a sentence with the nearest known arguments, or nothing if none is near."""
    nearest = {name: _nearest(name, known) for name in strange}
    meant = [f"`{near}` for `{name}`" for name, near in nearest.items() if near]
    if len(strange) == len(meant) == 1:
        meant = [f"`{near}`" for near in nearest.values()]
    return f"Did you mean {', '.join(meant)}? " if meant else ""


def _nearest(name, known):
    # Other packages have grad_accum, accumulation_steps, accumulate_grad_batches and more.
    if "accum" in name and "accumulator" not in name:
        return "accum_iters"
    if "nan" in name:
        return "skip_nonfinite"
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def pop_own(cls, given):
    """Remove our own arguments from `given`, and return them checked and with their defaults."""
    own = {
        name: _CHECKS[name](given.pop(name, default))
        for name, default in OWN.items()
        if name in _CHECKS
    }
    if own["all_reduce"] == "per_window":
        _check_late_reduction(cls, own)
    return own


_keeps_functions = contextvars.ContextVar("keeps_functions", default=False)


def config_of(optimizer):
    """Return an optimizer's config for use in Python: it may have functions, which files can't."""
    token = _keeps_functions.set(True)
    try:
        return optimizer.get_config()
    finally:
        _keeps_functions.reset(token)


def own_config(optimizer):
    """Return our own arguments for `get_config`, with their present values."""
    options = optimizer._accumulation.options
    accum_iters, now = options.accum_iters, optimizer.accum_iters
    # An optimizer with accumulators keeps them in a file, also while accum_iters is set to 1.
    if not options.is_scheduled and (now is None or now > 1):
        accum_iters = now
    return {
        "accum_iters": _saved("accum_iters", accum_iters),
        "reduction": optimizer.reduction,
        "skip_nonfinite": optimizer.skip_nonfinite,
        "skip_norm": _saved("skip_norm", optimizer.skip_norm),
        "window_transforms": _saved("window_transforms", optimizer.window_transforms),
        "gate": optimizer.gate,
        "all_reduce": optimizer.all_reduce,
    }


def _saved(name, value):
    """Return an argument of ours as a part of a config."""
    if _keeps_functions.get():
        return value
    if isinstance(value, schedule.AccumulationSchedule):
        return schedule.config_of(value)
    if callable(value) or isinstance(value, list):
        raise ValueError(
            "A config, and so a file, can't hold a function. Save the weights and "
            f"`optimizer.get_state()`, and make the optimizer anew{_REMEDIES.get(name, '')}. "
            f"Received: {name}={value!r}"
        )
    return value


_REMEDIES = {"accum_iters": ", or use an AccumulationSchedule"}


def check_one_accumulation(own, gradient_accumulation_steps):
    others = own["skip_nonfinite"], own["skip_norm"], own["window_transforms"]
    if gradient_accumulation_steps and (own["accum_iters"] != 1 or any(others)):
        raise ValueError(
            "`gradient_accumulation_steps` is Keras's own accumulation and can't be combined with "
            "`accum_iters`: leave it out, and give the number of micro-batches of an update as "
            f"`accum_iters`. Received: gradient_accumulation_steps={gradient_accumulation_steps}, "
            f"accum_iters={own['accum_iters']}"
        )
    if gradient_accumulation_steps:
        warn(
            f"gradient_accumulation_steps={gradient_accumulation_steps} is Keras's own "
            "accumulation, in which schedules, constraints and averages of weights count "
            "micro-batches. For the accumulation of this package, give "
            f"accum_iters={gradient_accumulation_steps}.",
        )


def check_reduction(reduction):
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"`reduction` must be one of {REDUCTIONS}: how the gradients of a window become one "
            f"gradient. Received: reduction={reduction!r}"
        )
    return reduction


def check_skip_nonfinite(skip_nonfinite):
    if not isinstance(skip_nonfinite, bool):
        raise TypeError(
            f"`skip_nonfinite` must be True or False. Received: skip_nonfinite={skip_nonfinite!r}"
        )
    return skip_nonfinite


def check_skip_norm(skip_norm):
    if skip_norm is None or callable(skip_norm):
        return skip_norm
    if not (is_number(skip_norm) and skip_norm > 0):
        raise refusal(skip_norm)(
            "`skip_norm` must be a number > 0, a function of the gradient's norm that returns True "
            f"to skip the micro-batch, or None. Received: skip_norm={skip_norm!r}"
        )
    return float(skip_norm)


def check_window_transforms(window_transforms):
    allowed = ranges.range_of(ranges.OURS["window_transforms"])
    if not ranges.is_allowed(window_transforms, allowed):
        raise TypeError(
            "`window_transforms` must be a list of functions of gradients and variables, or None. "
            f"Received: window_transforms={window_transforms!r}"
        )
    return list(window_transforms) if window_transforms else None


def _renamed(name, value):
    """Return the present name of a value, and warn if the value has an old name."""
    new = RENAMED[name].get(value, value) if isinstance(value, str) else value
    if new != value:
        warn(
            f"{name}={value!r} is {name}={new!r} now. The old name works until version 0.3.",
            DeprecationWarning,
        )
    return new


def renamed_config(config):
    """Return a config in which values of version 0.1 have their present names."""
    return {
        name: RENAMED.get(name, {}).get(value, value) if isinstance(value, str) else value
        for name, value in config.items()
    }


def check_gate(gate):
    gate = _renamed("gate", gate)
    if "PythonGate" in (getattr(gate, "__name__", None), type(gate).__name__):
        raise ValueError(
            "PythonGate is a callback, not a `gate`: leave `gate` out, and train with "
            f"`model.fit(..., callbacks=[PythonGate()])`. Received: gate={gate!r}"
        )
    if gate not in GATES:
        raise ValueError(
            f"`gate` must be one of {GATES}: what prevents an update inside a window. "
            f"Received: gate={gate!r}"
        )
    return gate


def check_all_reduce(all_reduce):
    all_reduce = _renamed("all_reduce", all_reduce)
    if all_reduce not in ALL_REDUCES:
        raise ValueError(
            f"`all_reduce` must be one of {ALL_REDUCES}: when the replicas of a tf.distribute "
            f"strategy sum their gradients. Received: all_reduce={all_reduce!r}"
        )
    return all_reduce


def _check_late_reduction(cls, own):
    if own["gate"] != "conditional":
        raise ValueError(
            "all_reduce='per_window' needs gate='conditional': a graph without a conditional sums "
            f"over replicas in every micro-batch. Received: gate={own['gate']!r}"
        )
    for name in ("skip_nonfinite", "skip_norm"):
        if own[name]:
            raise ValueError(
                f"all_reduce='per_window' can't be used with {name}, which looks at the sum over "
                f"all replicas in each micro-batch. Received: {name}={own[name]!r}"
            )
    if not cls._port.can_reduce_late:
        raise ValueError(NO_LATE_REDUCTION)


def check_once(variables, name):
    """Raise a ValueError if a variable is twice in a call. The variables are hashable."""
    if len(set(variables)) < len(variables):
        twice = next(v for i, v in enumerate(variables) if v in variables[:i])
        raise ValueError(
            "Each variable must be there once in a call of the optimizer: a window has one sum for "
            "each variable. Add up the gradients of the variable. For the layers of several "
            "models, `{id(v): v for v in variables}.values()` has each variable once. "
            f"Received twice: {name(twice)}"
        )


def check_weight(weight):
    """Check a weight that is a number. A tensor may not have a value yet."""
    if isinstance(weight, numbers.Real) and not 0 <= weight < math.inf:
        raise ValueError(
            "`weight` must be a finite number >= 0: the number that the loss of the micro-batch "
            f"was divided by, such as its samples. Received: weight={weight!r}"
        )


def check_learning_rate(learning_rate, allowed):
    """Return a number as a float, and a callable, a schedule or an `allowed` type unchanged."""
    if is_number(learning_rate):
        return float(learning_rate)
    if isinstance(learning_rate, allowed) or callable(learning_rate):
        return learning_rate
    raise TypeError(
        "`learning_rate` must be a number, a LearningRateSchedule or a callable without "
        f"arguments. Received: learning_rate={learning_rate!r}"
    )


def check_number(name, value):
    """Return a number as a float."""
    if not is_number(value):
        raise TypeError(f"`{name}` must be a number. Received: {name}={value!r}")
    return float(value)


_CHECKS = {
    "accum_iters": schedule.check,
    "reduction": check_reduction,
    "skip_nonfinite": check_skip_nonfinite,
    "skip_norm": check_skip_norm,
    "window_transforms": check_window_transforms,
    "gate": check_gate,
    "all_reduce": check_all_reduce,
}

NO_LATE_REDUCTION = (
    "all_reduce='per_window' is for tf.distribute, on Keras 3 with TensorFlow and on tf_keras; "
    "on other backends an optimizer doesn't reduce over devices."
)

_NOT_KNOWN = (
    "`decide` can't be used with {}: only the device knows whether a micro-batch counts. Leave "
    "`decide` out: the window's counters decide, with the same numbers."
)


def check_decision(is_update, options):
    """Raise an error unless Python can decide so whether a micro-batch makes an update."""
    if not isinstance(is_update, bool):
        raise TypeError(
            "`is_update` must be a Python boolean, such as a static argument of the traced "
            "function. For a tensor, call `close_window(when)`. "
            f"Received: is_update={is_update!r}"
        )
    if options.drops:
        name = "skip_nonfinite=True" if options.skip_nonfinite else "skip_norm"
        raise ValueError(_NOT_KNOWN.format(name))
    if not (is_update or options.accumulates):
        raise ValueError(
            "`decide(False)` needs accumulators, and with accum_iters=1 there are none: construct "
            "the optimizer with another `accum_iters`, or with None. Received: is_update=False"
        )


IS_SCHEDULED = (
    "`accum_iters` can't be set on an optimizer whose `accum_iters` is a function or an "
    "AccumulationSchedule: train steps that are traced already have it. Make a new optimizer with "
    "the same state, and compile the model with it: `{1}.from_optimizer(optimizer, "
    "accum_iters={0!r})`. Received: accum_iters={0!r}"
)

NO_ACCUMULATORS = (
    "`accum_iters` can't become {0} after a step at accum_iters=1, as there are no accumulators. "
    "Set `accum_iters` before the first step, or compile the model with "
    "`{1}.from_optimizer(model.optimizer, accum_iters={0})`."
)


def representation(optimizer):
    """Return the constructor call that makes this optimizer, without most of the defaults."""
    cls = type(optimizer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a lambda that couldn't be read from a file
            config = config_of(optimizer)
    except Exception:  # in a traced function, or before the end of a constructor
        return object.__repr__(optimizer)
    rate = {"learning_rate": config.get("learning_rate", config.get("lr"))}
    config = {**rate, **{n: config[n] for n in cls.__signature__.parameters if n in config}}
    said = {n: _written(value) for n, value in config.items() if _is_told(cls, n, value)}
    return f"{cls.__name__}({', '.join(f'{name}={value}' for name, value in said.items())})"


def _is_told(cls, name, value):
    """True if a representation has this argument."""
    if name == "accum_iters":
        return True
    if name == "learning_rate":
        return value is not None
    if name == "exclude_layers":  # Keras makes an empty list of None
        return bool(value)
    if name in ("lr", "jit_compile"):  # jit_compile is False on every machine without a GPU
        return False
    default = cls.__signature__.parameters[name].default
    if value is None and not default:  # a weight_decay of 0 is none
        return False
    if name == "name":  # Keras makes one of the class's name, in snake case and with a number
        return value.replace("_", "").rstrip("0123456789").lower() != cls.__name__.lower()
    if default is None and name in ("decay", "epsilon"):  # the signature leaves it to the host
        default = float(ranges.default_of(ranges.OF_KERAS[name]))
    return _written(value) != _written(default)


def _written(value):
    """Return a value of a config as Python source, with as few digits as its precision needs."""
    if isinstance(value, dict) and {"class_name", "config"} <= set(value):
        name, config = value["class_name"].rpartition(">")[-1], value["config"]
        if name == "__lambda__":
            return "<lambda>"
        if not isinstance(config, dict):  # of a function
            return str(config)
        said = {key: item for key, item in config.items() if item not in (None, name)}
        return f"{name}({', '.join(f'{key}={_written(item)}' for key, item in said.items())})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    if is_number(value):
        return repr(int(value) if isinstance(value, numbers.Integral) else _shortest(float(value)))
    return repr(value)


def _shortest(number):
    """Return the shortest decimal that is this number in float32, if the number is a float32."""
    if abs(number) < 2.0**127:
        for digits in range(1, 10):
            short = float(f"{number:.{digits}g}")
            if struct.unpack("f", struct.pack("f", short))[0] == number:
                return short
    return number


# Keras versions besides the one that a module is for, in the words of a message.
_OTHERS = {
    "keras_accum.keras3": {"tf_keras": "tf_keras"},
    "keras_accum.tf_keras": {"Keras 3": "keras3"},
    "keras_accum.keras2": {"Keras 3": "keras3", "tf_keras": "tf_keras"},
}


def description(optimizer, host):
    """Return the constructor call, the module, and what to import for another Keras."""
    module, name = type(optimizer).__module__, type(optimizer).__name__
    others = [
        f" For {other}: from keras_accum.{of_other} import {name}."
        for other, of_other in _OTHERS.get(module, {}).items()
    ]
    return f"{representation(optimizer)}  # of {module}, for {host}.{''.join(others)}"
