"""The table of arguments. Checks, signatures, docstrings and stubs read it.

No host is imported here.
"""

import ast
import inspect
import numbers
import re
import warnings

# What each argument may be and its default, in the words of a docstring.
OURS = {
    "accum_iters": "integer >= 1 and below `2**31`, default 1",
    "reduction": '`"mean"` (default), `"sum"` or `"weighted"`',
    "skip_nonfinite": "boolean, default False",
    "skip_norm": "float > 0 or None (default)",
    "window_transforms": "list of functions or None (default)",
    "gate": '`"select"` (default) or `"conditional"`',
    "all_reduce": '`"per_micro_batch"` (default) or `"per_window"`',
}
OF_KERAS = {
    "learning_rate": "float >= 0, default 0.001",
    "decay": "float >= 0, default 0",
    "momentum": "float in [0, 1], default 0",
    "nesterov": "boolean, default False",
    "rho": "float in [0, 1), default 0.9",
    "centered": "boolean, default False",
    "beta_1": "float in [0, 1), default 0.9",
    "beta_2": "float in [0, 1), default 0.999",
    "epsilon": "float >= 0, default 1e-7; None means the default",
    "amsgrad": "boolean, default False",
    "schedule_decay": "float >= 0, default 0.004",
    "initial_accumulator_value": "float >= 0, default 0.1",
    "learning_rate_power": "float <= 0, default -0.5",
    "l1_regularization_strength": "float >= 0, default 0",
    "l2_regularization_strength": "float >= 0, default 0",
    "l2_shrinkage_regularization_strength": "float >= 0, default 0",
    "beta": "float >= 0, default 0",
    "beta_2_decay": "float < 0, default -0.8",
    "epsilon_1": "float >= 0, default 1e-30",
    "epsilon_2": "float >= 0, default 1e-3",
    "clip_threshold": "float > 0, default 1",
    "relative_step": "boolean, default True",
    "warmup_steps": "integer >= 0, default 0",
    "adam_beta_1": "float in [0, 1), default 0.9",
    "adam_beta_2": "float in [0, 1), default 0.999",
    "adam_weight_decay": "float >= 0 or None, default 0.004",
    "adam_lr_ratio": "float >= 0, default 1",
    "exclude_layers": "list of strings or None (default)",
    "exclude_embeddings": "boolean, default True",
    "muon_a": "float, default 3.4445",
    "muon_b": "float, default -4.775",
    "muon_c": "float, default 2.0315",
    "ns_steps": "integer >= 0, default 5",
    "rms_rate": "float > 0 or None, default 0.2",
    "weight_decay": "float >= 0 or None (default)",
    "clipnorm": "float >= 0 or None (default)",
    "clipvalue": "float >= 0 or None (default)",
    "global_clipnorm": "float >= 0 or None (default)",
    "use_ema": "boolean, default False",
    "ema_momentum": "float in [0, 1], default 0.99",
    "ema_overwrite_frequency": "integer >= 1 or None (default)",
    "loss_scale_factor": "float > 0 or None (default)",
    "jit_compile": "boolean, default True",
}

# Where this is different: on a host, for an optimizer of Keras, or for an optimizer on a host. The
# names of the hosts are explained in texts/optimizer.txt.
EXCEPTIONS = {
    "keras2": {
        "reduction": '`"mean"` (default) or `"sum"`',
        "all_reduce": '`"per_micro_batch"`, the only value',
    },
    "keras3": {
        "all_reduce": '`"per_micro_batch"` (default) or `"per_window"` (TensorFlow only)',
    },
    "SGD": {"learning_rate": "float >= 0, default 0.01"},
    "AdamW": {"weight_decay": "float >= 0, default 0.004"},
    "Adadelta": {"rho": "float in [0, 1), default 0.95"},
    "Lion": {
        "beta_1": "float in (0, 1], default 0.9",
        "beta_2": "float in [0, 1), default 0.99",
    },
    "Muon": {
        "momentum": "float in [0, 1), default 0.95",
        "nesterov": "boolean, default True",
        "weight_decay": "float >= 0 or None, default 0.004",
    },
    "ScheduleFreeAdamW": {
        "learning_rate": "float >= 0, default 0.0025",
        "beta_1": "float in (0, 1], default 0.9",
        "epsilon": "float >= 0, default 1e-8; None means the default",
    },
    "Adadelta on keras2": {"learning_rate": "float >= 0, default 1.0"},
    "Adagrad on keras2": {"learning_rate": "float >= 0, default 0.01"},
    "Adamax on keras2": {"learning_rate": "float >= 0, default 0.002"},
    "Nadam on keras2": {"learning_rate": "float >= 0, default 0.002"},
    "RMSprop on new_style": {"ema_overwrite_frequency": "integer >= 1 or None, default 100"},
    "Lion on new_style": {"learning_rate": "float >= 0, default 0.0001"},
}

_NUMBERS = {
    "float": lambda x: x == x,
    "float >= 0": lambda x: x >= 0,
    "float > 0": lambda x: x > 0,
    "float <= 0": lambda x: x <= 0,
    "float < 0": lambda x: x < 0,
    "float in [0, 1]": lambda x: 0 <= x <= 1,
    "float in [0, 1)": lambda x: 0 <= x < 1,
    "float in (0, 1]": lambda x: 0 < x <= 1,
    "integer >= 0": lambda x: isinstance(x, numbers.Integral) and x >= 0,
    "integer >= 1": lambda x: isinstance(x, numbers.Integral) and x >= 1,
}
_BOOLEAN, _STRINGS, _FUNCTIONS = "boolean", "list of strings", "list of functions"
_OR_NONE = " or None"


def entries(host, name=""):
    """{argument: its entry in the table} for an optimizer of Keras with this name on a host."""
    table = {**OURS, **OF_KERAS}
    for whom in (host, name, f"{name} on {host}"):
        table.update(EXCEPTIONS.get(whom, {}))
    return table


def range_of(entry):
    return re.split(r", default| \(default\)", entry)[0]


def default_of(entry):
    said = re.search(r", default ([^;]+)|(\S+) \(default\)", entry)
    return ast.literal_eval(said.group(1) or said.group(2).strip("`"))


def choices_of(entry):
    """Return the strings that an argument may be, none for an argument of another type."""
    return tuple(re.findall(r'"(\w+)"', entry))


def is_of_keras(stock):
    """True if a class is one of Keras's own."""
    return stock.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow")


def check(stock, given):
    """Raise a TypeError or ValueError if an argument of Keras is out of its range."""
    for name, value in given.items():
        allowed = refused_range(stock, name, value)
        if allowed is not None:
            raise _error(stock, name, value, allowed)


def refused_range(stock, name, value):
    """Return the range of an argument of Keras that is out of it, else None.

    An argument that somebody else's class names may mean anything, and isn't checked.
    """
    if name not in OF_KERAS or name == "learning_rate" and not is_number(value):
        return None  # each host says what else a learning rate may be
    owner = _owner(stock, name)
    if owner is not None and not is_of_keras(owner):
        return None
    of_class = EXCEPTIONS.get(getattr(owner, "__name__", None), {})
    allowed = range_of(of_class.get(name, OF_KERAS[name]))
    return None if is_allowed(value, allowed) else allowed


def _owner(stock, name):
    """The class that names this argument in its constructor, None if no class does."""
    for cls in stock.__mro__[:-1]:
        init = vars(cls).get("__init__")
        if init is not None and name in inspect.signature(init).parameters:
            return cls
    return None


def _error(stock, name, value, allowed):
    """Return the error for a value: the stock class's own, if that names the argument."""
    received = f"{name}={value!r}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stock(**{name: value})
    except ValueError as error:
        said = str(error)
        if name in said:
            return ValueError(said if received in said else f"{said} Received: {received}")
    except Exception:  # such as the TypeError of a comparison
        pass
    article = "an" if allowed.startswith("integer") else "a"
    return refusal(value)(f"`{name}` must be {article} {allowed}. Received: {received}")


def is_allowed(value, allowed):
    kind = allowed.split(_OR_NONE)[0]
    if value is None:
        return allowed != kind
    if kind == _BOOLEAN:
        return isinstance(value, int) and value in (0, 1) or hasattr(value, "dtype")
    if kind == _STRINGS:
        return isinstance(value, (list, tuple)) and all(isinstance(s, str) for s in value)
    if kind == _FUNCTIONS:
        return isinstance(value, (list, tuple)) and all(map(callable, value))
    if is_number(value):
        return _NUMBERS[kind](value)
    # The host knows what a schedule, a tensor or a variable is.
    return callable(value) or hasattr(value, "dtype")


def is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def refusal(value):
    """The error for a value that is refused: a ValueError for a number, else a TypeError."""
    return ValueError if is_number(value) else TypeError
