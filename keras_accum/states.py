"""An optimizer's state as named arrays: checks, and lists of arrays that Keras 2 wrote.

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
from keras_accum.warn import warn

FORMAT = 1
WINDOW = ("window_position", "window_length", "accum_iters")
WEIGHT = "window_weight"
MISSING = "missing_gradients"
_UNNAMED = "unnamed."

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

# The slots that Keras 2.0 to 2.3 wrote after `iterations`, one slot after the other, used or not.
KERAS_2_SLOTS = {
    "SGD": ("momentum",),
    "Adam": ("momentum", "velocity", "velocity_hat"),
    "AMSGrad": ("momentum", "velocity", "velocity_hat"),
    "RMSprop": ("velocity",),
    "Adagrad": ("accumulator",),
    "Adadelta": ("accumulated_grad", "accumulated_delta_var"),
    "Adamax": ("momentum", "norm"),
    "Nadam": ("momentum", "velocity"),
}
# The rules of which Keras 2.2 didn't save the number of updates.
NO_COUNT = ("RMSprop", "Adagrad", "Adadelta")
# The scalars of Keras 2. Keras 2.3 wrote them after `iterations`; earlier versions didn't.
KERAS_2_SCALARS = {"Nadam": ("u_product",)}


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


def is_of_window(name):
    return name in (*WINDOW, "unapplied", WEIGHT, MISSING) or name.startswith("accumulator.")


def without_window(state):
    return {name: array for name, array in state.items() if not is_of_window(name)}


def slot_major(rule, scalars, slots, variables, accumulates):
    """Return the names of a state for this number of variables, in the order of Keras 2's lists."""
    indices = range(variables)
    names = ["completed_updates"]
    names += [scalar_name(rule, scalar) for scalar in scalars]
    names += [slot_name(rule, slot, i) for slot in slots for i in indices]
    if accumulates and variables:
        names += ["state_format", *WINDOW] + [f"accumulator.{i}" for i in indices]
    return names


def with_unapplied(rule, scalars, slots, variables, accumulates, weighs):
    """Return the names of a state in the order of tf_keras's lists, with their extra counter."""
    names = slot_major(rule, scalars, slots, variables, accumulates)
    if "accum_iters" in names:
        after = names.index("accum_iters") + 1
        names[after:after] = ["unapplied"] + [WEIGHT] * weighs
    return names


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
    return {name: array for name, array in state.items() if name != MISSING}


def unnamed(arrays, scalars, is_rate_known, accumulates, weighs):
    """Return a list of arrays as a state with names for those that tell it themselves, or None.

    The arrays of the rule are called unnamed.<place in the list> until the variables are known.
    Before them are the counts, and after them is the window. The list is of Keras 3, or of another
    Keras, whose lists have no learning rate and the given number of scalars.
    """
    kinds = "".join("." if array.ndim else array.dtype.kind for array in arrays)
    if kinds[:1] not in ("i", "f"):  # Keras 2.0 counted in floats
        return None
    has_rate = is_rate_known and kinds[1:2] == "f" and kinds.count("f") - weighs > scalars
    counts, window = ["completed_updates"] + ["learning_rate"] * has_rate, []
    found = re.fullmatch("..*?(i{4,})([^i]*)", kinds) if accumulates else None
    if found:
        has_missing, sums = arrays[-1].dtype.kind == "i", len(found[2]) - weighs
        if sums < 1 or has_missing and arrays[-1].shape != (sums,):
            return None
        window = ["state_format", *WINDOW]
        window += ["unapplied"] * (len(found[1]) == 5 and not has_rate)  # only on tf_keras
        window += [WEIGHT] * weighs + [f"accumulator.{i}" for i in range(sums - has_missing)]
        window += [MISSING] * has_missing
    rule = [f"{_UNNAMED}{i}" for i in range(len(counts), len(arrays) - len(window))]
    state = dict(zip(counts + rule + window, arrays))
    state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
    if rule and "unapplied" in window:  # it still tells the order of the rule's arrays
        state["unapplied"] = np.asarray(0)
    return state


def is_unnamed(name):
    return name.startswith(_UNNAMED)


def in_list_order(state):
    """Return the names of a state with unnamed arrays, in the order of their list."""
    rule = sorted(filter(is_unnamed, state), key=lambda name: int(name[len(_UNNAMED) :]))
    has_rate = "learning_rate" in state and f"{_UNNAMED}1" not in state
    sums = [f"accumulator.{i}" for i in range(count(state))]
    window = [name for name in (*WINDOW, "unapplied", WEIGHT, *sums, MISSING) if name in state]
    window[:0] = ["state_format"] * ("accum_iters" in state)
    return ["completed_updates"] + ["learning_rate"] * has_rate + rule + window


def named(arrays, names, layout=None):
    """Return a list of arrays as a state with these names, None if the arrays can't be that.

    `layout` has the shapes by names, if the variables are known.
    """
    if len(arrays) != len(names):
        return None
    state = dict(zip(names, arrays))
    if layout is not None and {"state_format", "unapplied", *layout} >= state.keys():
        fits = all(
            # The shapes tell enough of a rule: Adafactor has integers in place of some slots.
            np.shape(array) == layout.get(name, ()) and ("." in name or _can_be(name, array))
            for name, array in state.items()
        )
        return state if fits else None
    shapes = {}
    for name, array in state.items():
        if not _can_be(name, array):
            return None
        shapes.setdefault(index_of(name), set()).add(np.shape(array))
    scalars = shapes.pop(None, set())
    if MISSING in state:
        missing = np.asarray(state[MISSING])
        if missing.dtype.kind != "i" or missing.shape != (len(shapes) + 1,):
            return None
        scalars.remove(missing.shape)
    if scalars - {()} or any(len(found) > 1 for found in shapes.values()):
        return None
    return state


def _can_be(name, array):
    """True if an array of a list without names has a data type of this part of a state."""
    kind = array.dtype.kind
    if name in (*WINDOW, MISSING, "state_format", "unapplied"):
        return kind in "iu"
    if is_scalar_of_rule(name):
        return kind in "bifc"
    if kind == "c":
        return "." in name
    return kind == "f" or name == "completed_updates" and kind == "i"


def from_keras_2(arrays, rule, used):
    """Return a list of arrays that Keras 2.0 to 2.3 saved as a state, or None.

    `used` has the slots that the optimizer uses with its constructor arguments.
    """
    arrays = [np.asarray(array) for array in arrays]
    names = KERAS_2_SLOTS.get(rule)
    if names is None:
        return None
    # RMSprop didn't save the number of updates.
    iterations = arrays.pop(0) if arrays and arrays[0].ndim == 0 else np.asarray(0)
    state = {"completed_updates": iterations}
    scalars = [scalar_name(rule, scalar) for scalar in KERAS_2_SCALARS.get(rule, ())]
    left_out = [name for name in scalars if not (arrays and arrays[0].ndim == 0)]
    # A file of Keras 2.2 has no scalars: take 1, as Keras 2.3 does.
    state.update({name: np.asarray(1.0) if left_out else arrays.pop(0) for name in scalars})
    variables, rest = divmod(len(arrays), len(names))
    if rest or not np.issubdtype(iterations.dtype, np.number):
        return None
    for position, slot in enumerate(names):
        for i in range(variables):
            array = arrays[position * variables + i]
            if slot in used:
                state[slot_name(rule, slot, i)] = array
            elif slot == "velocity_hat" and array.shape != (1,):
                return None  # a slot of AMSGrad, not the placeholder of Adam
    if left_out and iterations:
        warn(
            f"This list doesn't hold {', '.join(left_out)}, which Keras 2.2 didn't save: 1 is "
            "taken, as Keras 2.3 does. The first updates will be larger than with the true value.",
        )
    return state


def updates_in(micro_batches, accum_iters):
    """Return the number of updates in a number of micro-batches."""
    updates, pending = divmod(int(micro_batches), accum_iters)
    if pending:
        warn(
            f"This model was saved {pending} of {accum_iters} micro-batches into a window, and the "
            "file doesn't hold their gradients: training continues with a fresh window.",
        )
    return updates
