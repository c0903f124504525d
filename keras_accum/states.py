"""An optimizer's state as named arrays: names, checks, and what a fresh state has.

No host is imported here. A state is a dictionary of NumPy arrays, the same on every host:

    state_format                    ()  the version of this layout
    completed_updates               ()  integer, the number of updates made
    learning_rate                   ()  if it is a number, not a schedule or another callable
    <Rule>.<slot>.<i>                   a slot of trainable variable i, for example Adam.momentum.0;
                                        of the variable's shape and dtype
    <Rule>.<scalar>                     what a rule keeps once for all variables, for example
                                        Nadam.u_product
    moving_average.<i>                  with use_ema; of the variable's shape and dtype
    window_position, window_length, accum_iters
                                    ()  integers, only with accum_iters > 1, see `window`
    window_weight                   ()  only with accum_iters > 1 and reduction="weighted"
    accumulator.<i>                     only with accum_iters > 1: the gradient sum of the open
                                        window; of the variable's shape and dtype, but float32 for
                                        float16 and bfloat16
    missing_gradients         (n + 1,)  integers, only if gradients of the n trainable variables
                                        have been missing in the open window, see `window`
"""

import re

import numpy as np

from keras_accum import window

FORMAT = 1
WINDOW = ("window_position", "window_length", "accum_iters")
WEIGHT = "window_weight"
MISSING = "missing_gradients"
UNNAMED = "unnamed."

# The least value of each counter. Counters are integers below 2**31, as Keras 3 has them in int32
# on JAX and PyTorch, and as `accum_iters` must be anywhere.
_LEAST = {
    "state_format": 1,
    "completed_updates": 0,
    "window_position": 0,
    "window_length": 1,
    "accum_iters": 1,
    "unapplied": 0,
    MISSING: 0,
}
_MOST = 2**31 - 1

_SHOWN = 8  # the number of names or numbers that a message shows


class StateError(RuntimeError):
    """Raised if a state doesn't fit the optimizer. The optimizer is unchanged.

    StateError is a RuntimeError, not a ValueError: Keras's HDF5 loaders catch a ValueError and
    continue with a fresh optimizer.

    Example:

    >>> from keras_accum import AdamAccumulate, StateError
    >>> optimizer = AdamAccumulate(accum_iters=5)
    >>> try:
    ...     optimizer.set_state({"completed_updates": -1})
    ... except StateError as error:
    ...     print("Impossible: completed_updates = -1" in str(error))
    True
    """


def slot_name(rule, slot, index):
    """Return the name of a slot of one variable. `rule` is the rule's name, for example "Adam"."""
    return f"{rule}.{slot}.{index}"


def scalar_name(rule, scalar):
    """Return the name of a value that a rule keeps once for all variables, as Nadam's u_product."""
    return f"{rule}.{scalar}"


def is_index(text):
    """True if the text is a number as these names have it: ASCII digits, no leading zeros."""
    return re.fullmatch("0|[1-9][0-9]{0,8}", text) is not None


def index_of(name):
    """Return the index of the variable to which an array belongs, None for a scalar."""
    _, dot, index = name.rpartition(".")
    return int(index) if dot and is_index(index) and not is_unnamed(name) else None


def is_scalar_of_rule(name):
    return "." in name and index_of(name) is None


def count(names):
    """Return the number of variables to which the names belong."""
    indices = [index_of(name) for name in names]
    return max((index + 1 for index in indices if index is not None), default=0)


def is_fresh(state):
    """True if the state is of an optimizer before its variables were created."""
    return count(state) == 0 and np.array_equal(state.get("completed_updates"), 0)


def by_index(state):
    """Return one array for each variable of a state: the largest, since a slot can be a scalar.

    A state has at least one array for each variable: an index beyond that isn't of this state.
    """
    by_size = sorted(state.items(), key=lambda item: np.size(item[1]))
    arrays = {index_of(name): array for name, array in by_size}
    variables = min(count(state), len(state))
    return [arrays.get(index, np.empty(0)) for index in range(variables)]


def layout(names, variables):
    """Return the shapes of a state with these names, for these variables."""
    indices = {name: index_of(name) for name in names if name != "state_format"}
    shapes = {
        name: () if index is None else tuple(variables[index].shape)
        for name, index in indices.items()
    }
    if MISSING in shapes:
        shapes[MISSING] = (len(variables) + 1,)
    return shapes


def loose_layout(state, shared, rule, options, keeps_sums):
    """Return the shapes of a state before the variables, which decide what else, are known.

    `shared` are the names of what exists before the variables. `keeps_sums` is True if there are
    gradient sums, ours or the stock optimizer's.
    """
    variables, shapes = min(count(state), len(state)), dict.fromkeys(shared, ())
    for name, array in state.items():
        index = index_of(name)
        is_of_variables = name.startswith((f"{rule}.", "moving_average.")) and (
            name.count(".") == 1 if index is None else index < variables
        )
        if is_of_variables or is_unnamed(name):
            shapes[name] = array.shape
    if any(map(is_of_window, state)):
        if options.accumulates:
            more = [WEIGHT] * options.weighs + ["unapplied"] * ("unapplied" in state)
            shapes.update(dict.fromkeys([*WINDOW, *more], ()))
            shapes[MISSING] = (variables + 1,)
        if keeps_sums:
            sums = (f"accumulator.{i}" for i in range(variables))
            shapes.update({name: np.shape(state.get(name, ())) for name in sums})
    return shapes


def portable(array):
    """Return the array in a data type that NumPy's own files and all hosts can hold."""
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype.kind == "u" and (array < 2**63).all():  # not all backends have unsigned types
        return array.astype(np.int64)
    return array


def as_array(value):
    """Return a value of somebody's as an array; as an array of None if the value isn't numbers."""
    try:
        array = portable(value)
    except (TypeError, ValueError, OverflowError, Warning):  # a ragged list, among others
        array = np.asarray(None)
    return array if _are_numbers(array) else np.asarray(None)


def as_arrays(state):
    """Return a state of somebody's as arrays. A name that isn't a string is made one."""
    if not hasattr(state, "keys"):
        raise TypeError(
            "`state` must be a dictionary `{name: array}`, as `get_state` returns it. For a list "
            f"of arrays, call `set_weights`. Received: a {type(state).__name__}"
        )
    return {
        name if isinstance(name, str) else repr(name): as_array(state[name])
        for name in state.keys()
    }


def fitted(state, layout, owner):
    """Return the state in the order of a layout, or raise a StateError that names all misfits.

    `layout` maps the names that the state must have to shapes. Three parts of a state are optional.
    Without `learning_rate`, the learning rate doesn't change. Without the window and its
    accumulators, which a stock optimizer doesn't have, a fresh window starts. Without any array and
    any update, the optimizer is fresh: it was saved before its variables were created.
    """
    state = as_arrays(state)
    problems = _newer(state) or _misfits(state, layout) + _wrong_numbers(state)
    _refuse(problems, owner)
    # All hosts get counters of one type. (Keras 2.0 counted in floats.)
    return {
        name: state[name].astype("int64") if name in _LEAST else state[name]
        for name in layout
        if name in state
    }


def check_numbers(state, owner):
    """Raise a StateError if an array of a state has numbers that it can't have."""
    _refuse(_wrong_numbers(state), owner)


def _refuse(problems, owner):
    if problems:
        raise StateError(
            f"This optimizer state doesn't fit {owner}. {'; '.join(problems)}. Nothing was changed."
        )


def _newer(state):
    version = state.get("state_format", np.asarray(FORMAT))
    if version.ndim or not _are_counts("state_format", version) or version <= FORMAT:
        return []
    reads = f"this release of keras_accum reads up to format {FORMAT}"
    return [f"The state has format {int(version)}, and {reads}: install a newer release"]


def _misfits(state, layout):
    optional = {"learning_rate", MISSING}
    expected = {"state_format": (), **layout}
    if np.array_equal(state.get("window_position", 0), 0):  # no window is open, so no weight
        optional.add(WEIGHT)
        expected.setdefault(WEIGHT, ())
    if not any(map(is_of_window, state)):
        optional.update(filter(is_of_window, layout))
    if is_fresh(state):
        optional.update(n for n in layout if index_of(n) is not None or is_scalar_of_rule(n))
    # Some hosts know the shapes of an optimizer's slots only when the variables exist.
    expected.update((name, ()) for name in (*_LEAST, WEIGHT) if name in expected)
    if MISSING in expected:
        expected[MISSING] = (count(layout) + 1,)
    found = (
        ("Missing: ", [name for name in layout if name not in state and name not in optional]),
        ("Not known here: ", [name for name in state if name not in expected]),
        (
            "Of another shape: ",
            [
                f"{name} is {state[name].shape}, not {shape}"
                for name, shape in expected.items()
                if name in state and _are_numbers(state[name]) and state[name].shape != shape
            ],
        ),
    )
    return [text + _shortened(names) for text, names in found if names]


def _wrong_numbers(state):
    """Return messages for numbers that no training leads to: the file is damaged.

    A slot or a sum may be any number, also NaN, since a training that diverged may be saved. A
    learning rate may be any number that can be assigned to it.
    """
    wrong = [name for name in state if not _are_numbers(state[name], name)]
    found = [f"Not numbers: {_shortened(wrong)}"] if wrong else []
    # `_misfits` names an array of another shape.
    state = {n: a for n, a in state.items() if n not in wrong and a.ndim == (n == MISSING)}
    most, length = dict.fromkeys(_LEAST, _MOST), state.get("window_length")
    if length is not None and _are_counts("window_length", length):
        most["window_position"] = int(length) - 1
    allowed = {
        name: f"an integer from {least} to {most[name]}"
        for name, least in _LEAST.items()
        if name in state and not _are_counts(name, state[name], most[name])
    }
    if "learning_rate" in state and not _is_rate(state["learning_rate"]):
        allowed["learning_rate"] = "a number that float32 can hold"
    if WEIGHT in state and not 0 <= state[WEIGHT] < np.inf:
        allowed[WEIGHT] = "a finite number >= 0"
    for name, what in allowed.items():
        value = np.array2string(state[name], threshold=_SHOWN)
        found.append(f"Impossible: {name} = {value}, which must be {what}")
    return found


def _are_counts(name, array, most=_MOST):
    """True if a counter of this name can have these numbers."""
    if array.dtype.kind not in "if":
        return False
    numbers = array.astype("float64")
    with np.errstate(invalid="ignore"):  # NaN
        are_counts = (numbers == np.floor(numbers)) & (_LEAST[name] <= numbers) & (numbers <= most)
    return bool(are_counts.all())


def _is_rate(array):
    with np.errstate(over="ignore"):
        is_held = np.isinf(array) or not np.isinf(array.astype("float32"))
    return array.dtype.kind != "b" and is_held


def _are_numbers(array, name="."):
    """True if every host can write the array; a failure in mid-write would damage the state.

    Only what belongs to a variable or to a rule can be complex: its name has a dot.
    """
    is_complex = array.dtype.kind == "c" and "." in name
    is_real = array.dtype.kind in "bif" and array.dtype.itemsize <= 8
    return array.dtype.isnative and (is_real or is_complex and array.dtype.itemsize <= 16)


def check_complex(state, is_complex, owner):
    """Raise a StateError if an array has complex numbers and its place has real ones.

    `is_complex(name)` tells of a place.
    """
    wrong = [name for name in state if np.iscomplexobj(state[name]) and not is_complex(name)]
    found = [f"Complex, where real numbers are kept: {_shortened(wrong)}"] if wrong else []
    _refuse(found, owner)


def _shortened(names):
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join(names[:_SHOWN] + more)


def completed(state, layout, accum_iters, initial=None):
    """Return a fitted state completed with the values of a fresh optimizer and a fresh window.

    `initial` has the initial values that aren't zero, by <Rule>.<slot> and <Rule>.<scalar>.
    """
    initial = initial or {}
    fresh = {"window_position": 0, "window_length": accum_iters, "accum_iters": accum_iters}

    def left_out(name, shape):
        of_all = name if index_of(name) is None else name.rpartition(".")[0]
        if of_all in initial:
            return np.full(shape, initial[of_all])
        is_count = index_of(name) is None and name != WEIGHT
        return np.full(shape, fresh.get(name, 0), "int64" if is_count else "float32")

    return {
        name: state[name] if name in state else left_out(name, shape)
        for name, shape in layout.items()
        if name in state or name != "learning_rate"
    }


def initial(state):
    """Return the first number of each scalar and slot of a fresh state, as `completed` takes it."""
    return {
        name if index_of(name) is None else name.rpartition(".")[0]: np.ravel(array)[0]
        for name, array in state.items()
    }


def is_of_window(name):
    return name in (*WINDOW, "unapplied", WEIGHT, MISSING) or name.startswith("accumulator.")


def without(state, name):
    """Return the state without the array of this name."""
    return {other: array for other, array in state.items() if other != name}


def without_window(state):
    return {name: array for name, array in state.items() if not is_of_window(name)}


def merged(old, new):
    """Merge two lists in the order of the newer list; also return True if that order is certain."""
    order, lists = list(new), (set(old), set(new))
    for before, item in zip([None, *old], old):
        if item not in lists[1]:
            order.insert(0 if before is None else order.index(before) + 1, item)
    is_certain = all(any({*pair} <= items for items in lists) for pair in zip(order, order[1:]))
    return order, is_certain


def renumbered(state, indices):
    """Return the state with each variable's index replaced by `indices[index]`."""
    new = {}
    for name, array in state.items():
        index = index_of(name)
        stem = name.rpartition(".")[0]
        new[name if index is None else f"{stem}.{indices[index]}"] = array
    if MISSING in state:
        new[MISSING] = state[MISSING].copy()
        for index, new_index in indices.items():
            new[MISSING][new_index] = state[MISSING][index]
    return new


def without_idle(state):
    """Return the state without counts of missing gradients if no gradient is missing."""
    missing = state.get(MISSING)
    if missing is None or window.counts_of(np, missing, state["completed_updates"])[:-1].any():
        return state
    return without(state, MISSING)


def is_unnamed(name):
    return name.startswith(UNNAMED)


def has_unnamed(state):
    """True if arrays of the rule wait for their names."""
    return any(map(is_unnamed, state))
