"""Errors for calls by mistake, with the remedy. No Keras is imported here."""

import difflib
import inspect
import itertools
import re

from keras_accum.engine.models import list_models
from keras_accum.host import find_user_classes, is_of_keras
from keras_accum.schedule import is_count

# Wrong names of arguments, as patterns, and what is meant. Most are other packages' names.
_ARGUMENTS = {
    r"ac+um|per_update|update_freq|update_every|every_k|backward_passes|^steps$": "`accum_iters`",
    r"grad_mean": '`reduction="mean"` or `reduction="sum"`, in place of the default "auto"',
    r"finite": "`skip_nonfinite=True`",
    r"skip_update": "`skip_nonfinite=True`, or for a function of the norm `skip_norm`",
    r"grad_norm": "`global_clipnorm` (on Keras 2 `clipnorm`), which clips a window's average, or "
    "`skip_norm`, which drops micro-batches",
}
_TO_COMPILE = "{} is an optimizer: give it to `compile`, and not to `callbacks`"
_STATE_DICT = (
    "{} isn't an optimizer of PyTorch, and has no `state_dict`. `state = optimizer.get_state()` is "
    "a dictionary of NumPy arrays, to save by `torch.save` or `np.savez`, and "
    "`optimizer.set_state(state)` continues from it."
)
# Attributes looked for on an optimizer by mistake, and the error's text.
ATTRIBUTES = {
    "set_model": _TO_COMPILE,  # `fit` looks for these two on its callbacks
    "on_batch_end": _TO_COMPILE,
    "step": "{} has no `step`: give it the gradients. On Keras 3, call "
    "`optimizer.apply(gradients, variables)`; on tf_keras, "
    "`optimizer.apply_gradients(zip(gradients, variables))`.",
    "init": "{} has no `init`, which is optax's. Call `optimizer.build(variables)`; on JAX, the "
    "state is then `[v.value for v in optimizer.variables]`.",
    "update": "{} has no `update`, which is optax's. On JAX, call "
    "`optimizer.stateless_apply(state, gradients, weights)`, which returns the new weights and the "
    "new state. On other backends of Keras 3, call `optimizer.apply(gradients, variables)`; on "
    "tf_keras, `optimizer.apply_gradients(zip(gradients, variables))`.",
    "zero_grad": "{} has no `zero_grad`, and keeps its sums by itself: call `model.zero_grad()` "
    "before each `backward`.",
    **dict.fromkeys(("state_dict", "load_state_dict"), _STATE_DICT),
}
# Stock arguments with these words in their names never take integers above 1; clips not even 1.
_SMALL = "clip", "decay", "epsilon", "name"


def check_call(cls, args, kwargs, rate):
    """Raise an error for a constructor call of `cls` that can't be meant so.

    rate: The learning rate among the arguments, or None.
    """
    _check_rate(cls, rate)
    parameters = cls._signature.parameters
    places = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    _check_positions(cls, places, args)
    for name in kwargs:
        if name in cls._fixed:
            raise ValueError(f"Argument(s) not recognized: {cls.__name__} has {cls._fixed}.")
        for pattern, meant in _ARGUMENTS.items() if name not in parameters else ():
            if re.search(pattern, name):
                wrong = {name: kwargs[name]}
                raise ValueError(f"Argument(s) not recognized: {wrong}. Did you mean {meant}?")


def _check_rate(cls, value):
    """Raise a TypeError if the learning rate is an optimizer or an optimizer class."""
    kind = value if isinstance(value, type) else type(value)
    if any(base.__name__ in ("Optimizer", "OptimizerV2") for base in kind.__mro__):
        raise TypeError(
            "`learning_rate` must be a number, not an optimizer. Write "
            f"{cls.__name__}(0.001, accum_iters=5), or to convert an optimizer, "
            f"{cls.__name__}.from_optimizer(optimizer, accum_iters=5). "
            f"Received: learning_rate={value!r}"
        )


def _check_positions(cls, places, args):
    """Raise a ValueError for a positional `accum_iters`, last in the widely copied class."""
    for place, value in itertools.zip_longest(places, args):
        least = 1 if place is not None and "clip" in place.name else 2
        if is_count(value, least) and (place is None or _is_small(cls, place)):
            given = value if place is None else f"{place.name}={value}"
            raise ValueError(
                f"`{given}` by position: did you mean `accum_iters={value}`? If not, give the "
                f"argument by its name. Received: {cls.__name__}{args}"
            )


def _is_small(cls, place):
    """Return True if a Keras argument is a fraction, a flag, a clip or a decay."""
    default, is_named = place.default, any(part in place.name for part in _SMALL)
    is_fraction = isinstance(default, float) and 0 <= default < 1
    return is_of_keras(cls._stock_class) and (is_named or is_fraction or isinstance(default, bool))


def check_signature(function, name, arguments):
    """Raise a TypeError if a user's function can't be called with these arguments."""
    try:
        found = inspect.signature(function)
    except ValueError:  # some functions in C tell none
        return
    try:
        found.bind(*arguments)
    except TypeError:
        given = getattr(function, "__name__", function)
        raise TypeError(
            f"`{name}` must be a function of ({', '.join(arguments)}). Received: {name}={given}"
            f"{found}"
        ) from None


def check_horovod(optimizer):
    """Raise a ValueError if Horovod's DistributedOptimizer accumulates, too."""
    # Its wrapper keeps its own accumulation in this attribute, None without it.
    helper, options = vars(optimizer).get("_agg_helper"), optimizer._accumulation.options
    passes = getattr(helper, "backward_passes_per_step", 1)
    if passes > 1 and options.accumulates:
        raise ValueError(
            "`backward_passes_per_step` of Horovod's DistributedOptimizer multiplies with "
            "`accum_iters`: leave it at 1. Received: "
            f"backward_passes_per_step={passes}, accum_iters={options.accum_iters}"
        )


def check_attribute(optimizer, name, names):
    """Raise an AttributeError if a new attribute looks like one of our arguments, `names`."""
    cls = type(optimizer)
    is_new = not (name.startswith("_") or name in vars(optimizer) or hasattr(cls, name))
    if is_new and name not in cls._signature.parameters and not find_user_classes(cls):
        near = difflib.get_close_matches(name, names, 1, cutoff=0.9)
        if near or re.search(r"ac+um.*(iter|step)", name):
            raise AttributeError(
                f"{cls.__name__} has no `{name}`, and setting it would change nothing. Did you "
                f"mean `{near[0] if near else 'accum_iters'}`?"
            )


class NoAttribute:
    """An attribute missing from an optimizer: an error with the line to write.

    Another base class or the instance may have it: then that one is found. A `__getattr__` in its
    place would end the graphs of `torch.compile`.
    """

    def __init__(self, owner, name, text):
        self._owner, self._name, self._text = owner, name, text

    def __get__(self, optimizer, cls):
        if optimizer is None:
            return getattr(super(self._owner, cls), self._name, self)
        try:
            return getattr(super(self._owner, optimizer), self._name)
        except AttributeError:
            raise AttributeError(self._text.format(cls.__name__)) from None


_IN_A_MODEL = (
    "If layers were frozen or unfrozen since, or this is a copy of the model, compile it with a "
    "new optimizer, `new = {}(...)`, not one of `from_optimizer`. Then, with `state = "
    "optimizer.get_state()` of the old one, `new.build(model.trainable_variables)` and "
    "`new.set_state(state, by_name=True)` continue the weights that both have."
)
_IN_A_LOOP = (
    "Before the first step, call `optimizer.build(variables)` with all variables that it will ever "
    "update. To continue with others, make a new one, `new = {}(...)`: after "
    "`new.build(variables)`, `new.set_state(optimizer.get_state(), by_name=True)` continues the "
    "weights that both have."
)


def check_known(store, variables):
    """Raise a ValueError for variables unknown to `build`."""
    known = set(map(store.key, store.variables))
    new = [store.get_name(v) for v in variables if store.key(v) not in known]
    if new:
        name, has_model = type(store.optimizer).__name__, bool(list_models(store.optimizer))
        raise ValueError(
            f"{name} was built for {len(known)} variables, and these are others: {', '.join(new)}. "
            + (_IN_A_MODEL if has_model else _IN_A_LOOP).format(name)
        )


def check_once(store, variables):
    """Raise a ValueError if a variable occurs twice."""
    keys = list(map(store.key, variables))
    if len(set(keys)) < len(keys):
        twice = next(v for i, v in enumerate(variables) if keys[i] in keys[:i])
        raise ValueError(
            "Each variable must be there once in a call of the optimizer. Add up its gradients "
            "first. For layers that several models share, "
            "`{id(v): v for v in variables}.values()` has each variable once. "
            f"Received twice: {store.get_name(twice)}"
        )
