"""Parsing a state from a user or a file. No Keras is imported here."""

from typing import Any, NamedTuple

import numpy as np

from keras_accum.engine.state import lists, names
from keras_accum.engine.state.names import NAMES


class ParsedState(NamedTuple):
    """A state from a user or a file, not yet matched with an optimizer."""

    arrays: Any  # by name, or a list
    weights: Any = None  # the names of the weights that it is for, in its order
    keys: Any = ()  # their keys, if a stock optimizer knows them
    by_order: bool = False  # True for a file: Keras loads the values of weights by order

    @property
    def is_list(self):
        return isinstance(self.arrays, list)

    @property
    def raw(self):
        """The state as `State.get` returns it."""
        if self.weights is None:
            return self.arrays
        return {**self.arrays, NAMES: names.encode(self.weights)}


def parse(raw, rule, accum_iters=None, keys=(), by_order=False):
    """Return a state from a user or a file as a ParsedState.

    rule: the rule's name.
    accum_iters: the length of windows, if a list counts micro-batches instead of updates.
    """
    arrays = _arrays(raw)
    if not isinstance(arrays, list):
        return ParsedState(*names.take(arrays), keys, by_order)
    arrays = lists.prepare(arrays, rule)
    if accum_iters is not None:
        arrays = lists.count_updates(arrays, accum_iters)
    return ParsedState(arrays, by_order=by_order)


def _arrays(raw):
    """Return a user's state, a dictionary or a list, with NumPy arrays."""
    if hasattr(raw, "keys"):
        state = {str(name): _array(raw[name]) for name in raw.keys()}
        is_list = state and all(name.isdigit() for name in state)
        return [state[name] for name in sorted(state, key=int)] if is_list else state
    if isinstance(raw, (list, tuple)):
        return list(map(_array, raw))
    raise TypeError(
        "`set_state` and `set_weights` take a dictionary `{name: array}` from `get_state`, or a "
        f"list of arrays from `get_weights`. Received: a {type(raw).__name__}"
    )


def _array(value):
    try:
        return portable(value)
    except (TypeError, ValueError):  # a ragged list, among others
        return np.asarray(None)


def portable(array):
    """Return the array in a data type for NumPy's files and every Keras."""
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    return array.astype(np.int64) if array.dtype.kind == "u" else array
