"""The names of a state's weights, and whether they are the optimizer's. No Keras is imported here.

A state has the names as numbers, so that every file and every calculation takes them: their text in
UTF-8, a name in each line.
"""

import re

import numpy as np

from keras_accum.engine.state.checks import StateError, parse_index, shorten
from keras_accum.engine.window import MISSING

NAMES = "weight_names"


def names_of(store, variables):
    """Return variables' names: the same in an equal model, if possible on every Keras."""
    return [re.sub(":[0-9]+$", "", store.get_name(variable)) for variable in variables]


def encode(names):
    text = "\n".join(name.replace("\n", " ") for name in names)
    return np.frombuffer(text.encode(), "uint8").copy()


def take(state):
    """Return a state without its names, and these, None if it has none."""
    rest = dict(state)
    array = rest.pop(NAMES, None)
    if array is None or array.dtype.kind in "biuf" and not array.any():  # zeros: after a reset
        return rest, None
    try:
        return rest, bytes(array.astype("uint8", casting="unsafe")).decode().split("\n")
    except (TypeError, ValueError) as error:
        raise StateError(
            f"`{NAMES}` of this state isn't text in UTF-8: {error}. Nothing was changed."
        ) from None


def find_others(names, own, frozen):
    """Return the names, at their places in a state, that are other weights than the optimizer's.

    A model that is loaded or built again may have other names: Keras numbers layers, and names of
    outer layers come and go. frozen: names of weights that are known to be frozen now, and so
    aren't renamed, unless another model has them: then only names of outer layers may differ.
    """
    has_common = not set(names).isdisjoint(own)

    def is_other(name, here):
        if name in frozen and name.split("/")[-2:] != here.split("/")[-2:]:
            return True
        return has_common and not _may_be(name, here)

    return [name for name, here in zip(names, own) if name != here and is_other(name, here)]


def _may_be(name, here):
    """Return True if two names may be of one weight: its layer's, but for a number, are equal."""
    one, other = name.split("/"), here.split("/")
    # The weight's own name may differ on another Keras.
    place = -2 if len(one) > 1 and len(other) > 1 else -1
    one, other = (re.sub("_[0-9]+$", "", parts[place]) for parts in (one, other))
    return one == other


def check(names, own):
    """Raise a StateError unless names tell which weights of a state the optimizer has."""
    text = None
    if not names:
        text = "this state has no names: from version 1.2 on, `get_state` returns them"
    elif not set(names) & set(own):
        text = f"no weight is in both. The state has {shorten(names)}; here are {shorten(own)}"
    for each in (names or [], own):
        if len(set(each)) < len(each):
            text = f"several weights are called {max(each, key=each.count)}"
    if text:
        raise StateError(f"`by_name=True`, but {text}. Nothing was changed.")


def find_places(names, own):
    """Return each own name's place in a state, None if it isn't there."""
    places = {name: place for place, name in enumerate(names)}
    return [places.get(name) for name in own]


def rearrange(state, places, current):
    """Return a state for the weights in these places. A weight without a place keeps its values.

    current: {name: function that reads the optimizer's own value}.
    """
    moved, found = {place: index for index, place in enumerate(places) if place is not None}, {}
    for name, array in state.items():
        place = parse_index(name)
        if place is None:
            found[name] = array
        elif place in moved:
            found[f"{name.rpartition('.')[0]}.{moved[place]}"] = array
    new = [index for index, place in enumerate(places) if place is None]
    has_window = any(name.startswith("accumulator.") for name in state)
    for name, read in current.items():
        is_sum = name.startswith("accumulator.")
        if parse_index(name) in new and (has_window or not is_sum):
            found[name] = np.zeros_like(read()) if is_sum else read()
    position = state.get("window_position", 0)
    if has_window and np.any(position):  # the new ones have had no gradient
        missing = dict(enumerate(np.ravel(state.get(MISSING, 0))[:-1]))
        counts = [position if place is None else missing.get(place, 0) for place in places]
        found[MISSING] = np.asarray([*counts, 0])
    return found
