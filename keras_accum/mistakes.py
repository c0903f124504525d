"""Errors for calls by mistake, with the remedy. No Keras is imported here."""

import itertools
import numbers

from keras_accum.engine.models import list_models
from keras_accum.host import is_of_keras
from keras_accum.schedule import read_count

# Stock arguments with these words in their names never take integers above 1; clips not even 1.
_SMALL = "clip", "decay", "epsilon", "name"


def check_positions(cls, args):
    """Raise a ValueError for a positional `accum_iters`, last in the widely copied class."""
    places = [p for p in cls._signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, value in itertools.zip_longest(places, args):
        least = 1 if place is not None and "clip" in place.name else 2
        is_count = isinstance(value, numbers.Integral) and read_count(value, least)
        if is_count and (place is None or _is_small(cls, place)):
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
