"""Matching a state with an optimizer: which array is for which variable. No Keras here.

In each function, `parsed` is a `parsing.ParsedState` and `ours` the optimizer's
`variables.NamedVariables`.
"""

import functools

import numpy as np

from keras_accum.engine.models import name_weights
from keras_accum.engine.state import checks, lists, names
from keras_accum.engine.state.checks import is_of_window
from keras_accum.engine.window import FORMAT, UNWEIGHED, WEIGHT, layout


def match(parsed, ours, by_name=False):
    """Return a state to write: complete, with a new window if it has none.

    If it doesn't fit, raise a StateError.

    by_name: True if weights that only one side has may be left out.
    """
    shapes, other_weights = ours.shapes(), None
    if parsed.is_list and not by_name:
        arrays = _name_list(parsed.arrays, ours, shapes)
    else:
        places, other_weights = match_weights(parsed, ours, by_name)
        arrays = _arrange(parsed, places, ours)
    if not ours.has_window:
        checks.check_arrays(arrays, ours.owner)
        arrays = checks.drop_window(arrays, ours.owner)
    if ours.store.rate() is not None:
        shapes.setdefault("learning_rate", ())
    checks.check_arrays(arrays, ours.owner, shapes, ours.is_fresh, other_weights=other_weights)
    state = {name: np.zeros(shapes[name]) for name in filter(is_of_window, shapes)}
    position, version = arrays.get("window_position", 0), arrays.get("state_format", 1)
    weighs = WEIGHT in state
    if weighs:  # micro-batches without weights count as 1 each
        state[WEIGHT] = np.asarray(position, "float64")
    state.update(arrays)
    if ours.has_window:
        state.update(_without_loss_scale(arrays, ours.store.optimizer))
        are_weighed = weighs and (version == FORMAT or not position)
        state["state_format"] = np.asarray(FORMAT if are_weighed else UNWEIGHED)
    return {n: a.astype("int64") if n in checks.INTEGERS else a for n, a in state.items()}


def match_weights(parsed, ours, by_name=False):
    """Return each weight's place in a state by names, None if it isn't there.

    Also return in words which other trainable variables the state is for, or None.
    """
    keys = list(map(ours.store.key, ours.store.variables))
    if set(parsed.keys) & set(keys):  # otherwise another model's, in the same order
        places = {key: place for place, key in enumerate(parsed.keys)}
        return [places.get(key) for key in keys], None
    if by_name:
        return names.pair_by_name(parsed.weights, name_weights(ours.store)), None
    in_order = list(range(len(keys)))
    for number in (_count_sums(parsed.arrays), len(parsed.weights or ())):
        if number not in (0, len(keys)):
            text = f"{number} trainable variables, and the optimizer has {len(keys)}"
            return in_order, text
    if parsed.weights is None:
        return in_order, None
    here = name_weights(ours.store)
    places, other_places = names.pair(parsed.weights, here, parsed.by_order)
    pairs = [f"{parsed.weights[place]} ({here.trained[place]} here)" for place in other_places]
    return places, f"other trainable variables: {checks.shorten(pairs)}" if pairs else None


def _count_sums(state):
    return sum(isinstance(key, str) and key.startswith("accumulator.") for key in state)


def _name_list(arrays, ours, shapes):
    """Return a list's arrays by the names in these shapes, and of a window that isn't here."""
    of_weights = [tuple(map(int, v.shape)) for v in ours.store.variables]
    in_list = shapes if ours.has_window else {**shapes, **layout(of_weights, weighs=False)}
    return lists.fit(arrays, in_list, of_weights, ours.store.rule_name, ours.owner)


def _arrange(parsed, places, ours):
    """Return the arrays of a state by names in the optimizer's order, without others."""
    number = len(parsed.weights or parsed.keys or places)
    if places == list(range(number)):
        return parsed.arrays
    checks.check_arrays(parsed.arrays, ours.owner)
    current = {name: functools.partial(ours.store.read, v) for name, v in ours.by_name().items()}
    return names.rearrange(parsed.arrays, places, current)


def _without_loss_scale(arrays, optimizer):
    """Return the accumulators of a state of format 1, which had Keras 3's `loss_scale_factor`."""
    scale = getattr(optimizer, "loss_scale_factor", None)
    if not scale or arrays.get("state_format", 1) != 1:
        return {}
    return {n: array / scale for n, array in arrays.items() if n.startswith("accumulator.")}
