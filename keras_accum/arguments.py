"""The constructor arguments that all hosts share: checks, aliases and signatures.

No host is imported here. A class takes the arguments of its stock optimizer, in their order, and
then the ones of `OWN`, by keyword.
"""

import contextlib
import contextvars
import difflib
import inspect
import math
import numbers
import struct
import warnings

from keras_accum import ranges
from keras_accum.ranges import is_number, refusal

OWN = {
    "accum_iters": 1,
    "reduction": "mean",
    "skip_nonfinite": False,
    "gate": "select",
    "all_reduce": "per_micro_batch",
    "lr": None,
    "decay": None,
}
REDUCTIONS = ("mean", "sum", "weighted")
GATES = ("select", "conditional")
ALL_REDUCES = ("per_micro_batch", "per_window")
# Values of version 0.1, until version 0.3.
RENAMED = {
    "gate": {"arithmetic": "select", "branch": "conditional"},
    "all_reduce": {"micro_batch": "per_micro_batch", "window": "per_window"},
}


def signature(stock, fixed, more):
    """The signature of `stock`, less what a class fixes, and then our own keywords and `more`.

    `more` has names and defaults.
    """
    own = {**OWN, **more}
    taken = set(inspect.signature(stock.__init__).parameters) & set(OWN) - {"lr", "decay"}
    if taken:
        raise TypeError(
            f"{stock.__name__} takes arguments that every accumulating optimizer has: "
            f"{', '.join(sorted(taken))}. Rename them in a subclass of it."
        )
    parameters = [
        # The stock default name is the stock class's.
        parameter.replace(default=None) if name == "name" else parameter
        for name, parameter in inspect.signature(stock.__init__).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        and name not in fixed
        and name != "self"
    ]
    # Keras 2.2 calls some of ours its own, in their places: lr and decay.
    stock_names = {parameter.name for parameter in parameters}
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in own.items()
        if name not in stock_names
    ]
    return inspect.Signature(parameters)


def bind(cls, args, kwargs, unknown):
    """The arguments of one call by name, checked, with `lr` and None resolved.

    `unknown` is the type of error that the stock class raises for an unknown keyword.

    None stands for the host's default in the arguments for which older code wrote it.
    """
    parameters = cls.__signature__.parameters
    strange = {name: value for name, value in kwargs.items() if name not in parameters}
    if strange:
        raise unknown(
            f"Argument(s) not recognized: {strange}. {_did_you_mean(strange, parameters)}"
            f"{cls.__name__} takes {', '.join(parameters)}."
        )
    given = dict(cls.__signature__.bind(*args, **kwargs).arguments)
    if args:
        _check_first(cls, args[0])
    lr = given.pop("lr", None)
    if lr is not None:
        if given.get("learning_rate") is not None:
            raise ValueError(
                "`lr` is another name of `learning_rate`: give one of them. "
                f"Received: lr={lr}, learning_rate={given['learning_rate']}"
            )
        # Keras 2 took an integer, and Keras 3 takes none by its own name.
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
    """Raise a TypeError or ValueError if one of these arguments is out of its range."""
    if _checks.get():
        # None is also what a signature has for a default that the host knows.
        defaults = {name: p.default for name, p in cls.__signature__.parameters.items()}
        said = {n: v for n, v in given.items() if v is not None or defaults.get(n) is not None}
        ranges.check(cls._stock_class, said)


@contextlib.contextmanager
def unchecked():
    """In here, arguments come from a config: an older version may have written any value."""
    token = _checks.set(False)
    try:
        yield
    finally:
        _checks.reset(token)


def _check_first(cls, first):
    """Refuse an integer that is meant as `accum_iters`, where the learning rate comes first."""
    name = next(iter(cls.__signature__.parameters))
    is_rate = name in ("learning_rate", "lr") and ranges.is_of_keras(cls._stock_class)
    if is_rate and isinstance(first, numbers.Integral) and first > 1:
        raise ValueError(
            f"The first argument is `{name}`. Did you mean `accum_iters={first}`? For a learning "
            f"rate of {first}, write `{name}={float(first)}`. Received: {cls.__name__}({first!r})"
        )


def _did_you_mean(strange, known):
    """A sentence that names the arguments that are nearest to unknown ones, if there are any."""
    nearest = {name: _nearest(name, known) for name in strange}
    meant = [f"`{near}` for `{name}`" for name, near in nearest.items() if near]
    if len(strange) == len(meant) == 1:
        meant = [f"`{near}`" for near in nearest.values()]
    return f"Did you mean {', '.join(meant)}? " if meant else ""


def _nearest(name, known):
    # Other packages have grad_accum, accumulation_steps, accumulate_grad_batches and more.
    if "accum" in name and "accumulator" not in name:
        return "accum_iters"
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def pop_own(cls, given):
    """Take our own arguments out of `given`, checked, with their defaults."""
    own = {
        name: _CHECKS[name](given.pop(name, default))
        for name, default in OWN.items()
        if name in _CHECKS
    }
    if own["all_reduce"] == "per_window":
        _check_late_reduction(cls, own)
    return own


def own_config(optimizer):
    """Our own arguments for `get_config`, as they would be given now."""
    accum_iters = optimizer.accum_iters
    return {
        # An optimizer that has accumulators must come back with them, also while it is set to 1.
        "accum_iters": accum_iters if accum_iters > 1 else optimizer._accum_iters,
        "reduction": optimizer.reduction,
        "skip_nonfinite": optimizer.skip_nonfinite,
        "gate": optimizer.gate,
        "all_reduce": optimizer.all_reduce,
    }


def check_one_accumulation(own, gradient_accumulation_steps):
    if gradient_accumulation_steps and (own["accum_iters"] != 1 or own["skip_nonfinite"]):
        raise ValueError(
            "`gradient_accumulation_steps` is Keras's own accumulation and can't be combined with "
            "`accum_iters`: leave it out and say how many micro-batches make an update with "
            f"`accum_iters`. Received: gradient_accumulation_steps={gradient_accumulation_steps}, "
            f"accum_iters={own['accum_iters']}"
        )
    if gradient_accumulation_steps:
        warnings.warn(
            f"gradient_accumulation_steps={gradient_accumulation_steps} is Keras's own "
            "accumulation, in which schedules, constraints and averages of weights count "
            f"micro-batches. For this package's: accum_iters={gradient_accumulation_steps}.",
            stacklevel=3,
        )


def check_accum_iters(accum_iters):
    if (
        isinstance(accum_iters, bool)
        or not isinstance(accum_iters, numbers.Integral)
        or not 1 <= accum_iters < 2**31
    ):
        raise refusal(accum_iters)(
            "`accum_iters` must be an integer >= 1, and below 2**31: the number of micro-batches "
            f"that make one update. Received: accum_iters={accum_iters!r}"
        )
    return int(accum_iters)


def check_reduction(reduction):
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"`reduction` must be one of {REDUCTIONS}: what the gradients of a window are turned "
            f"into. Received: reduction={reduction!r}"
        )
    return reduction


def check_skip_nonfinite(skip_nonfinite):
    if not isinstance(skip_nonfinite, bool):
        raise TypeError(
            f"`skip_nonfinite` must be True or False. Received: skip_nonfinite={skip_nonfinite!r}"
        )
    return skip_nonfinite


def _renamed(name, value):
    """The name that a value of an argument has now, with a warning if that is another one."""
    new = RENAMED[name].get(value, value) if isinstance(value, str) else value
    if new != value:
        warnings.warn(
            f"{name}={value!r} is {name}={new!r} now, and the old name goes with version 0.3.",
            DeprecationWarning,
            stacklevel=5,
        )
    return new


def renamed_config(config):
    """A config in which values of version 0.1 have the names that they have now."""
    return {
        name: RENAMED.get(name, {}).get(value, value) if isinstance(value, str) else value
        for name, value in config.items()
    }


def check_gate(gate):
    gate = _renamed("gate", gate)
    if gate not in GATES:
        raise ValueError(
            f"`gate` must be one of {GATES}: what keeps an update from happening inside a window. "
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
            "all_reduce='per_window' needs gate='conditional': without a conditional in the graph "
            f"every micro-batch has its sum over replicas. Received: gate={own['gate']!r}"
        )
    if own["skip_nonfinite"]:
        raise ValueError(
            "all_reduce='per_window' can't be used with skip_nonfinite: whether a micro-batch "
            "counts depends on the gradients of all replicas. Received: skip_nonfinite=True"
        )
    if not cls._can_reduce_late:
        raise ValueError(NO_LATE_REDUCTION)


def check_once(variables, name):
    """Refuse a variable that is twice among those of one call. They are hashable."""
    if len(set(variables)) < len(variables):
        twice = next(v for i, v in enumerate(variables) if v in variables[:i])
        raise ValueError(
            "Each variable must be there once in a call of the optimizer: a window has one sum for "
            "it. Add its gradients up. For the layers of several models, "
            "`{id(v): v for v in variables}.values()` has each variable once. "
            f"Received twice: {name(twice)}"
        )


def check_weight(weight):
    """A number; a tensor isn't looked at, as its value may not be there yet."""
    if isinstance(weight, numbers.Real) and not 0 <= weight < math.inf:
        raise ValueError(
            "`weight` must be a finite number >= 0, of samples or of what else the loss of the "
            f"micro-batch was divided by. Received: weight={weight!r}"
        )


def check_learning_rate(learning_rate, allowed):
    """A number as a float; a callable, a schedule and what else is `allowed` as it is."""
    if is_number(learning_rate):
        return float(learning_rate)
    if isinstance(learning_rate, allowed) or callable(learning_rate):
        return learning_rate
    raise TypeError(
        "`learning_rate` must be a number, a LearningRateSchedule or a callable without "
        f"arguments. Received: learning_rate={learning_rate!r}"
    )


def check_number(name, value):
    """A number as a float."""
    if not is_number(value):
        raise TypeError(f"`{name}` must be a number. Received: {name}={value!r}")
    return float(value)


_CHECKS = {
    "accum_iters": check_accum_iters,
    "reduction": check_reduction,
    "skip_nonfinite": check_skip_nonfinite,
    "gate": check_gate,
    "all_reduce": check_all_reduce,
}

NO_LATE_REDUCTION = (
    "all_reduce='per_window' is for tf.distribute, on Keras 3 with TensorFlow and on tf_keras; "
    "elsewhere an optimizer doesn't reduce over devices."
)

NO_ACCUMULATORS = (
    "`accum_iters` can't become {0} after a step at accum_iters=1, as there are no accumulators. "
    "Set it before the first step, or compile the model with "
    "`{1}.from_optimizer(model.optimizer, accum_iters={0})`."
)


# Defaults that signatures leave to the host.
_UNSAID = {"epsilon": 1e-7, "decay": 0.0, "schedule_decay": 0.004, "exclude_layers": []}


def representation(optimizer):
    """The call of the constructor that makes this optimizer. Most defaults are left out."""
    cls = type(optimizer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a lambda that couldn't be read from a file
            config = optimizer.get_config()
    except Exception:  # in a traced function, or before the end of a constructor
        return object.__repr__(optimizer)
    rate = {"learning_rate": config.get("learning_rate", config.get("lr"))}
    config = {**rate, **{n: config[n] for n in cls.__signature__.parameters if n in config}}
    said = {n: _written(value) for n, value in config.items() if _is_told(cls, n, value)}
    return f"{cls.__name__}({', '.join(f'{name}={value}' for name, value in said.items())})"


def _is_told(cls, name, value):
    if name in ("learning_rate", "accum_iters"):
        return value is not None
    if name == "name":  # by itself the class's, in snake case and with a number
        return value.replace("_", "").rstrip("0123456789").lower() != cls.__name__.lower()
    if name in ("lr", "jit_compile"):  # False on every machine without a GPU
        return False
    default = cls.__signature__.parameters[name].default
    if value is None and not default:  # a weight_decay of 0 is none
        return False
    return _written(value) != _written(_UNSAID.get(name) if default is None else default)


def _written(value):
    """A value of a config as Python source, as short as a number of its precision can be."""
    if isinstance(value, dict) and "class_name" in value:  # a schedule or a function
        name, config = value["class_name"].rpartition(">")[-1], value["config"]
        if name == "function":
            return str(config)
        if name == "__lambda__":
            return "<lambda>"
        said = {key: item for key, item in config.items() if item not in (None, name)}
        return f"{name}({', '.join(f'{key}={_written(item)}' for key, item in said.items())})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return repr(_shortest(float(value)))
    return repr(value)


def _shortest(number):
    """The number with the fewest digits that is the same in float32, if this one comes from it."""
    if abs(number) < 2.0**127:
        for digits in range(1, 10):
            short = float(f"{number:.{digits}g}")
            if struct.unpack("f", struct.pack("f", short))[0] == number:
                return short
    return number


def description(optimizer, host):
    """The constructor call, and of which module: Keras's errors print it for another host's."""
    module = type(optimizer).__module__
    others = (
        "; other Keras versions have it in keras_accum.keras3, keras_accum.tf_keras and "
        "keras_accum.keras2"
    )
    ours = module.startswith("keras_accum.")
    return f"{representation(optimizer)}  # {module}, for {host}{others if ours else ''}"
