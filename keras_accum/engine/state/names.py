"""The names of a state's weights, and whether they are the optimizer's. No Keras is imported here.

A state has the names as numbers, so that every file and every calculation takes them: their text in
UTF-8, a name in each line.
"""

import collections
import functools
import re

import numpy as np

from keras_accum.engine.state.checks import StateError, parse_index, shorten
from keras_accum.engine.window import MISSING

NAMES = "weight_names"


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


def pair(names, here, by_order=False):
    """Return each weight's place in a state, and the state's places that are for other weights.

    The state has as many weights as the optimizer. If any place is for another, it doesn't fit.

    If a weight here has a state's name, the place is for this weight, trainable or not. The other
    names may have changed, and go by order: Keras numbers layers, and adds or leaves out the names
    of outer layers. But a changed name must be similar to the old one if other names are the same,
    or if a weight that isn't trainable has a similar name.

    here: a `models.Weights`.
    by_order: True if the weights' values are loaded by order, so that a number tells nothing.
    """
    number, candidates = len(here.trained), _find(names, here)
    if not by_order and sorted(candidates) == [[place] for place in range(number)]:
        return [candidates.index([place]) for place in range(number)], []
    some_are_here = any(candidates)

    def is_other(place):
        name, mine, places = names[place], here.trained[place], candidates[place]
        is_frozen = any(candidate >= number for candidate in places)
        if name == mine or place in places and not is_frozen:
            return False
        if is_frozen or places and not by_order:
            return True
        if _are_similar(name, mine):
            return False
        return some_are_here or any(_are_similar(name, other) for other in here.others)

    return list(range(number)), list(filter(is_other, range(number)))


def pair_by_name(names, here):
    """Return each weight's place in a state by its name, None if it isn't there.

    If names don't tell, raise a StateError.
    """
    candidates, text = _find(names or [], here), None
    known = [places for places in candidates if places]
    for name, places in zip(names or [], candidates):
        if len(places) > 1 or known.count(places) > 1 or names.count(name) > 1:
            text = f"several weights are called {name}"
    if names is None:
        text = "this state has no names: from version 1.2 on, `get_state` returns them"
    elif not text and not any(min(places) < len(here.trained) for places in known):
        both = f"The state has {shorten(names)}; here are {shorten(here.trained)}"
        text = f"no weight is in both. {both}"
    if text:
        raise StateError(f"`by_name=True`, but {text}. Nothing was changed.")
    return [candidates.index([p]) if [p] in candidates else None for p in range(len(here.trained))]


def _find(names, here):
    """Return for each name in a state the places here with this name, the optimizer's own first.

    If there are none, return the places with a name that differs only by outer layers.
    """
    whole, ends = collections.defaultdict(list), collections.defaultdict(list)
    for place, name in enumerate([*here.trained, *here.others]):
        whole[name].append(place)
        for end in _list_ends(name):
            ends[end].append(place)

    def find(name):
        shorter = (whole.get(end) for end in _list_ends(name))
        return whole.get(name) or ends.get(name) or next(filter(None, shorter), [])

    return list(map(find, names))


def _list_ends(name):
    """Return a name without its first layer, without its first two, and so on."""
    layers = name.split("/")
    return ["/".join(layers[start:]) for start in range(1, len(layers))]


def _are_similar(name, other):
    """Return True if two names differ at most by numbers, outer layers and the weight's own name.

    Another Keras may call the weight itself differently.
    """
    path, other_path = _split(name), _split(other)
    if len(path) > 1 and len(other_path) > 1:
        path, other_path = path[:-1], other_path[:-1]
    shared = min(len(path), len(other_path))
    return path[-shared:] == other_path[-shared:]


@functools.lru_cache(maxsize=2**14)
def _split(name):
    return [re.sub("_[0-9]+$", "", layer) for layer in name.split("/")]


def rearrange(state, places, current):
    """Return a state for the weights in these places. A weight without a place keeps its values.

    current: {name: function that reads the optimizer's own value}.
    """
    index_of = {place: index for index, place in enumerate(places) if place is not None}
    arrays = {}
    for name, array in state.items():
        place = parse_index(name)
        if place is None:
            arrays[name] = array
        elif place in index_of:
            arrays[f"{name.rpartition('.')[0]}.{index_of[place]}"] = array
    new = [index for index, place in enumerate(places) if place is None]
    has_window = any(name.startswith("accumulator.") for name in state)
    for name, read in current.items():
        is_sum = name.startswith("accumulator.")
        if parse_index(name) in new and (has_window or not is_sum):
            arrays[name] = np.zeros_like(read()) if is_sum else read()
    position = state.get("window_position", 0)
    if has_window and np.any(position):  # the new ones have had no gradient
        missing = dict(enumerate(np.ravel(state.get(MISSING, 0))[:-1]))
        counts = [position if place is None else missing.get(place, 0) for place in places]
        arrays[MISSING] = np.asarray([*counts, 0])
    return arrays
