"""The names of the arrays in a state. No Keras is imported here."""

import re

from keras_accum import window

FORMAT = 1  # the version of the layout


def index_of(name):
    """Return the index of the variable to which an array belongs, None for a scalar."""
    found = re.fullmatch(r".*\.(0|[1-9][0-9]{0,8})", name)
    return int(found.group(1)) if found else None


def is_of_window(name):
    of_window = (*window.COUNTERS, window.WEIGHT, window.MISSING, "state_format")
    return name in of_window or name.startswith("accumulator.")


def without_window(state):
    return {name: array for name, array in state.items() if not is_of_window(name)}
