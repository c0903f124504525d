"""Checks of a state's names, shapes and numbers. No Keras is imported here."""

import re

import numpy as np

from keras_accum.engine.window import COUNTERS, FORMAT, MISSING, WEIGHT

SINGLE_COUNTERS = ("state_format", "completed_updates", *COUNTERS)
INTEGERS = (*SINGLE_COUNTERS, MISSING)
_SHOWN = 8  # names in a message


def parse_index(name):
    """Return the variable's index in an array's name, None for a scalar."""
    match = re.fullmatch(r".*\.(0|[1-9][0-9]{0,8})", name)
    return int(match.group(1)) if match else None


def is_of_window(name):
    of_window = (*COUNTERS, WEIGHT, MISSING, "state_format")
    return name in of_window or name.startswith("accumulator.")


def drop_window(state, owner):
    """Return the state for an optimizer without accumulators. An open window is a StateError."""
    position = int(state.get("window_position", 0))
    if position:
        raise StateError(
            f"This optimizer state doesn't fit {owner}: it is {position} micro-batches into a "
            "window, and accum_iters=1 has no accumulators. Load it with accum_iters > 1, or call "
            "`apply_partial_window()` before you save it. Nothing was changed."
        )
    return {name: array for name, array in state.items() if not is_of_window(name)}


class StateError(RuntimeError):
    """Raised if a state doesn't fit the optimizer. The optimizer is unchanged.

    It isn't a ValueError, because Keras's HDF5 loaders catch that and start with a new optimizer.
    """

    __init__ = Exception.__init__  # so that AutoGraph keeps the type in traced functions


class NotBuiltError(ValueError, AttributeError):
    """Raised before the variables exist. `hasattr` needs an AttributeError."""


_BY_NAME = (
    " To continue with the weights that both have, by their names, and start the others afresh, "
    "call `set_state(state, by_name=True)` after `optimizer.build(model.trainable_variables)`. If "
    "these are the same weights with new names: `del state['weight_names']`."
)


def check_arrays(state, owner, shapes=None, is_fresh=False, rule=None, other_weights=None):
    """Raise a StateError that lists every misfit with these shapes, or with this rule, if known.

    `owner` describes the optimizer. `is_fresh` is true if it has made no step. `other_weights`
    describes those that the state is for, if they aren't the optimizer's.
    """
    problems = [f"It is for {other_weights}"] if other_weights else []
    problems += [] if shapes is None else _misfits(state, shapes, is_fresh)
    problems += [] if rule is None else _misfits_of_rule(state, rule)
    problems += _impossible(state)
    if problems:
        raise StateError(
            f"This optimizer state doesn't fit {owner}. {'; '.join(problems)}. Nothing was changed."
            + (_BY_NAME if other_weights else "")
        )


def _misfits(state, shapes, is_fresh):
    """Return messages for missing arrays, unknown arrays and wrong shapes.

    The learning rate and the whole window may be missing, and if neither side has made a step, all
    slots.
    """
    optional = {"learning_rate", "state_format", MISSING, WEIGHT}
    known = {"state_format": (), WEIGHT: (), **shapes}
    # As objects, because old NumPy has no `any` of strings.
    updates, position = (
        state.get(name, np.asarray(0)).astype(object).any()
        for name in ("completed_updates", "window_position")
    )
    # accum_iters alone doesn't imply an open window.
    if not any(map(is_of_window, state.keys() - {"state_format", "accum_iters"})):
        optional.update(filter(is_of_window, shapes))
    are_scalars = all(parse_index(name) is None for name in state)
    if are_scalars and is_fresh and not (updates or position):
        optional.update(name for name in shapes if name != "completed_updates")
    missing = [name for name in shapes if name not in state and name not in optional]
    misshapen = [
        f"{name} is {array.shape}, not {known[name]}"
        for name, array in state.items()
        if name in known and array.shape != known[name]
    ]
    misfits = {
        "Missing: ": missing,
        "Not known here: ": [name for name in state if name not in known],
        "Of another shape: ": misshapen,
    }
    problems = [text + shorten(names) for text, names in misfits.items() if names]
    if position and WEIGHT not in shapes and _has_weights(state):
        problems.append(
            "Its open window has weights: load it with reduction='auto', or call "
            "`apply_partial_window()` before you save it"
        )
    return problems


def _has_weights(state):
    """Return True if the micro-batches of the open window have other weights than 1 each."""
    return WEIGHT in state and bool(np.any(state[WEIGHT] != state.get("window_position", 0)))


def _misfits_of_rule(state, rule):
    """Return messages for names that fit no optimizer with this rule, whatever its variables."""
    scalars = {*INTEGERS, WEIGHT, "learning_rate"}
    unknown = [
        name
        for name in state
        if name not in scalars
        and name.partition(".")[0] not in (rule, "accumulator", "moving_average")
    ]
    missing = [] if "completed_updates" in state else ["completed_updates"]
    misfits = {"Missing: ": missing, "Not known here: ": unknown}
    return [text + shorten(names) for text, names in misfits.items() if names]


def _impossible(state):
    """Return messages for impossible numbers. Slots and sums may be NaN: training may diverge."""
    wrong = [name for name, array in state.items() if not _is_of_numbers(name, array.dtype)]
    problems = [f"Not numbers: {shorten(wrong)}"] if wrong else []
    state = {name: array for name, array in state.items() if name not in wrong}
    most = {**dict.fromkeys(INTEGERS, 2**31 - 1), "state_format": FORMAT}
    if "window_length" in state and not np.any(state["window_length"]):
        most["window_position"] = 0  # `decide` may go past any other length
    allowed = {}
    for name in filter(state.__contains__, INTEGERS):
        array = state[name]
        with np.errstate(invalid="ignore"):  # NaN
            are_counts = are_whole(array) & (0 <= array) & (array <= most[name])
        if not np.all(are_counts) or array.ndim and name in SINGLE_COUNTERS:
            allowed[name] = f"an integer from 0 to {most[name]}"
    if "state_format" in allowed:
        allowed["state_format"] = f"at most {FORMAT}: install a newer release of keras_accum"
    if WEIGHT in state and not np.all(np.isfinite(state[WEIGHT])):
        allowed[WEIGHT] = "a finite number"
    return problems + [
        f"Impossible: {name} = {np.array2string(state[name], threshold=_SHOWN)}, must be {what}"
        for name, what in allowed.items()
    ]


def are_whole(array):
    """Return a mask of whole numbers. They may be floats, as in a mean of states."""
    return array == np.floor(array)


def _is_of_numbers(name, dtype):
    kinds = "if" if name in INTEGERS else "bif"
    return dtype.kind in kinds and dtype.isnative and dtype.itemsize <= 8


def shorten(names):
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join(names[:_SHOWN] + more)
