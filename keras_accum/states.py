"""An optimizer's state as named arrays: whether it fits, and how Keras 2 wrote it.

No host is imported here. A state is a dictionary of NumPy arrays, the same on every host:

    state_format                    ()  the version of this layout
    completed_updates               ()  integer, the updates made
    learning_rate                   ()  where it's a number, not a schedule or another callable
    <Rule>.<slot>.<i>                   a slot of trainable variable i, as in Adam.momentum.0; of
                                        the variable's shape and data type
    moving_average.<i>                  Keras 3 with use_ema; shape and data type likewise
    window_position, window_length, accum_iters
                                    ()  integers, with accum_iters > 1 only, see `_window`
    window_weight                   ()  with reduction="weighted" as well
    accumulator.<i>                     the gradient sum of the open window, with accum_iters > 1
                                        only; likewise, but float32 for float16 and bfloat16
    missing_gradients         (n + 1,)  integers, where gradients of the n trainable variables have
                                        been missing in the open window, see `_window`
"""

import warnings

import numpy as np

from keras_accum import window

FORMAT = 1
WINDOW = ("window_position", "window_length", "accum_iters")
WEIGHT = "window_weight"
MISSING = "missing_gradients"

# What Keras 2.0 to 2.3 wrote after `iterations`, slot by slot, whether it was in use or not.
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
# What it has once for all variables. Keras 2.3 wrote it after `iterations`, before it nobody did.
KERAS_2_SCALARS = {"Nadam": ("u_product",)}


class StateError(RuntimeError):
    """An optimizer state that doesn't fit the optimizer. Nothing has been changed.

    Not a ValueError: Keras's HDF5 loaders catch those and go on with a fresh optimizer.

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
    """The name of a slot of one variable. `rule` is the name of the mathematics, as "Adam"."""
    return f"{rule}.{slot}.{index}"


def scalar_name(rule, scalar):
    """The name of what a rule has once for all variables, as Nadam's product of rates."""
    return f"{rule}.{scalar}"


def index_of(name):
    """Which variable an array belongs to, None for a scalar."""
    _, dot, index = name.rpartition(".")
    return int(index) if dot and index.isdigit() else None


def is_scalar_of_rule(name):
    return "." in name and index_of(name) is None


def count(names):
    """The number of variables that the names belong to."""
    indices = [index_of(name) for name in names]
    return max((index + 1 for index in indices if index is not None), default=0)


def by_index(state):
    """For each variable of a state one of its arrays."""
    arrays = {index_of(name): np.asarray(array) for name, array in state.items()}
    return [arrays.get(index, np.empty(0)) for index in range(count(state))]


def layout(names, variables):
    """The shapes of a state that has these names, for these variables."""
    indices = {name: index_of(name) for name in names if name != "state_format"}
    shapes = {
        name: () if index is None else tuple(variables[index].shape)
        for name, index in indices.items()
    }
    if MISSING in shapes:
        shapes[MISSING] = (len(variables) + 1,)
    return shapes


def portable(array):
    """An array of the data types that NumPy has by itself and its files can hold."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def fitted(state, layout, owner):
    """The state in the order of a layout, or a StateError that names all that is wrong with it.

    `layout` maps the names that the state must have to shapes. Three things may be left out.
    `learning_rate` then stays what it is. The window and its accumulators, as a stock optimizer has
    none, make a fresh window. All arrays, if no update was made, make a fresh optimizer: it was
    saved before it had any.
    """
    state = {name: portable(value) for name, value in state.items()}
    problems = _misfits(state, layout) or _impossible(state)
    if problems:
        raise StateError(
            f"This optimizer state doesn't fit {owner}. {'; '.join(problems)}. Nothing was changed."
        )
    return {name: state[name] for name in layout if name in state}


def _misfits(state, layout):
    version = state.get("state_format", FORMAT)
    if np.ndim(version) == 0 and np.issubdtype(np.asarray(version).dtype, np.integer):
        if version > FORMAT:
            reads = f"this release of keras_accum reads up to format {FORMAT}"
            return [f"It has format {version}, and {reads}: install a newer one"]
    optional = {"learning_rate", MISSING}
    expected = {"state_format": (), **layout}
    if not state.get("window_position", 0):  # no window is open: nothing has weight
        optional.add(WEIGHT)
        expected.setdefault(WEIGHT, ())
    if not any(map(is_of_window, state)):
        optional.update(filter(is_of_window, layout))
    if count(state) == 0 and state.get("completed_updates", 1) == 0:
        optional.update(n for n in layout if index_of(n) is not None or is_scalar_of_rule(n))
    found = (
        ("Missing: ", [name for name in layout if name not in state and name not in optional]),
        ("Not known here: ", [name for name in state if name not in expected]),
        ("Not numbers: ", [name for name in state if not _are_numbers(state[name])]),
        (
            "Of another shape: ",
            [
                f"{name} is {state[name].shape}, not {shape}"
                for name, shape in expected.items()
                if name in state and state[name].shape != shape
            ],
        ),
    )
    return [text + _shortened(names) for text, names in found if names]


def _are_numbers(array):
    """Whether every host can write these: one that couldn't would be left half written."""
    return array.dtype.kind in "biuf" and array.dtype.isnative


def _shortened(names, length=8):
    more = [f"and {len(names) - length} more"] if len(names) > length else []
    return ", ".join(names[:length] + more)


def _impossible(state):
    """Counters that no training leads to: the file is damaged."""
    least = dict.fromkeys(("completed_updates", "window_position", WEIGHT), 0)
    least.update(window_length=1, accum_iters=1)
    wrong = [name for name in least if name in state and state[name] < least[name]]
    if "window_position" in state and state["window_position"] >= state["window_length"]:
        wrong.append("window_position")
    return [f"Impossible: {name} = {state[name]}" for name in wrong]


def completed(state, layout, accum_iters, initial=None):
    """A fitted state with what was left out of it: a fresh optimizer, and a fresh window.

    `initial` has the numbers by <Rule>.<slot> and <Rule>.<scalar> that aren't zero at first.
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
    return name in (*WINDOW, WEIGHT, MISSING) or name.startswith("accumulator.")


def without_window(state):
    return {name: array for name, array in state.items() if not is_of_window(name)}


def slot_major(rule, scalars, slots, variables, accumulates):
    """The names of a state for so many variables, in the order of Keras 2's lists."""
    indices = range(variables)
    names = ["completed_updates"]
    names += [scalar_name(rule, scalar) for scalar in scalars]
    names += [slot_name(rule, slot, i) for slot in slots for i in indices]
    if accumulates and variables:
        names += ["state_format", *WINDOW] + [f"accumulator.{i}" for i in indices]
    return names


def with_unapplied(rule, scalars, slots, variables, accumulates, weighs):
    """The names of a state in the order of tf_keras's lists, which have a counter of their own."""
    names = slot_major(rule, scalars, slots, variables, accumulates)
    if "accum_iters" in names:
        after = names.index("accum_iters") + 1
        names[after:after] = ["unapplied"] + [WEIGHT] * weighs
    return names


def merged(old, new):
    """All of two lists, in the order of the newer one, and whether the two tell what that is."""
    order, lists = list(new), (set(old), set(new))
    for before, item in zip([None, *old], old):
        if item not in lists[1]:
            order.insert(0 if before is None else order.index(before) + 1, item)
    told = all(any({*pair} <= items for items in lists) for pair in zip(order, order[1:]))
    return order, told


def renumbered(state, indices):
    """The state with each variable's index replaced by `indices[index]`."""
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
    """A state without counts of missing gradients if none is missing in the open window."""
    missing = state.get(MISSING)
    if missing is None or window.counts_of(np, missing, state["completed_updates"])[:-1].any():
        return state
    return {name: array for name, array in state.items() if name != MISSING}


def named(arrays, names):
    """A list of arrays as a state, None if they can't be what the names say."""
    if len(arrays) != len(names):
        return None
    state = dict(zip(names, arrays))
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
    """Whether the data type is one that this part of a state has; lists of arrays have no names."""
    kind = portable(array).dtype.kind
    if name in (*WINDOW, MISSING, "state_format", "unapplied"):
        return kind in "iu"
    if is_scalar_of_rule(name):
        return kind in "biuf"
    return kind == "f" or name == "completed_updates"


def from_keras_2(arrays, rule, used):
    """The list of arrays that an optimizer of Keras 2.0 to 2.3 saved as a state, or None.

    `used` has the slots that the rule uses, as it was constructed.
    """
    arrays = [np.asarray(array) for array in arrays]
    names = KERAS_2_SLOTS.get(rule)
    if names is None:
        return None
    # RMSprop didn't save how many updates it had made.
    iterations = arrays.pop(0) if arrays and arrays[0].ndim == 0 else np.asarray(0)
    state = {"completed_updates": iterations}
    scalars = [scalar_name(rule, scalar) for scalar in KERAS_2_SCALARS.get(rule, ())]
    left_out = [name for name in scalars if not (arrays and arrays[0].ndim == 0)]
    # Keras 2.3 reads a file of 2.2 so.
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
                return None  # AMSGrad's, not the placeholder that Adam wrote
    if left_out and iterations:
        warnings.warn(
            f"This list doesn't hold {', '.join(left_out)}, which Keras 2.2 didn't save: 1 is "
            "taken, as Keras 2.3 does. The first updates are larger than they would have been.",
            stacklevel=2,
        )
    return state


def updates_in(micro_batches, accum_iters):
    """The updates that a count of micro-batches stands for."""
    updates, pending = divmod(int(micro_batches), accum_iters)
    if pending:
        warnings.warn(
            f"This model was saved {pending} of {accum_iters} micro-batches into a window, and the "
            "file doesn't hold their gradients: a fresh window is begun in their place.",
            stacklevel=2,
        )
    return updates
