"""What the arguments of Keras's optimizers may be. The checks and the docstrings read this table.

No host is imported here.
"""

import inspect
import numbers
import warnings

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
_BOOLEAN, _STRINGS = "boolean", "list of strings"
_OR_NONE = " or None"

_RANGES = {
    "learning_rate": "float >= 0",
    "decay": "float >= 0",
    "momentum": "float in [0, 1]",
    "nesterov": _BOOLEAN,
    "rho": "float in [0, 1)",
    "centered": _BOOLEAN,
    "beta_1": "float in [0, 1)",
    "beta_2": "float in [0, 1)",
    "epsilon": "float >= 0",
    "amsgrad": _BOOLEAN,
    "schedule_decay": "float >= 0",
    "initial_accumulator_value": "float >= 0",
    "learning_rate_power": "float <= 0",
    "l1_regularization_strength": "float >= 0",
    "l2_regularization_strength": "float >= 0",
    "l2_shrinkage_regularization_strength": "float >= 0",
    "beta": "float >= 0",
    "beta_2_decay": "float < 0",
    "epsilon_1": "float >= 0",
    "epsilon_2": "float >= 0",
    "clip_threshold": "float > 0",
    "relative_step": _BOOLEAN,
    "warmup_steps": "integer >= 0",
    "adam_beta_1": "float in [0, 1)",
    "adam_beta_2": "float in [0, 1)",
    "adam_weight_decay": "float >= 0 or None",
    "adam_lr_ratio": "float >= 0",
    "exclude_layers": "list of strings or None",
    "exclude_embeddings": _BOOLEAN,
    "muon_a": "float",
    "muon_b": "float",
    "muon_c": "float",
    "ns_steps": "integer >= 0",
    "rms_rate": "float > 0 or None",
    "weight_decay": "float >= 0 or None",
    "clipnorm": "float >= 0 or None",
    "clipvalue": "float >= 0 or None",
    "global_clipnorm": "float >= 0 or None",
    "use_ema": _BOOLEAN,
    "ema_momentum": "float in [0, 1]",
    "ema_overwrite_frequency": "integer >= 1 or None",
    "loss_scale_factor": "float > 0 or None",
    "jit_compile": _BOOLEAN,
}

# By the class of Keras that has an argument of another meaning.
_OF_CLASS = {
    "AdamW": {"weight_decay": "float >= 0"},
    "Lion": {"beta_1": "float in (0, 1]"},
    "Muon": {"momentum": "float in [0, 1)"},
    "ScheduleFreeAdamW": {"beta_1": "float in (0, 1]"},
}


def of_class(name):
    """{argument: what it may be} for an optimizer class of Keras with this name."""
    return {**_RANGES, **_OF_CLASS.get(name, {})}


def is_of_keras(stock):
    """True if a class is one of Keras's own."""
    return stock.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow")


def check(stock, given):
    """Raise a TypeError or ValueError if an argument of Keras or of ours is out of its range.

    An argument that somebody else's class names may mean anything, and isn't checked.
    """
    for name, value in given.items():
        if name == "learning_rate" and not is_number(value):
            continue  # each host says what else it takes
        owner = _owner(stock, name)
        if owner is None or is_of_keras(owner):
            allowed = of_class(getattr(owner, "__name__", "")).get(name)
            if allowed is not None and not _is_allowed(value, allowed):
                raise _error(stock, name, value, allowed)


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


def _is_allowed(value, allowed):
    kind = allowed.split(_OR_NONE)[0]
    if value is None:
        return allowed != kind
    if kind == _BOOLEAN:
        return isinstance(value, int) and value in (0, 1) or hasattr(value, "dtype")
    if kind == _STRINGS:
        return isinstance(value, (list, tuple)) and all(isinstance(s, str) for s in value)
    if is_number(value):
        return _NUMBERS[kind](value)
    # The host knows what a schedule, a tensor or a variable is.
    return callable(value) or hasattr(value, "dtype")


def is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def refusal(value):
    """The error for a value that is refused: a ValueError for a number, else a TypeError."""
    return ValueError if is_number(value) else TypeError
