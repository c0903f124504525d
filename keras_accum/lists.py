"""Lists of arrays without names: this Keras's, other ones', version 0.1's, stock optimizers'.

No host is imported here.
"""

import re

import numpy as np

from keras_accum import arguments, states
from keras_accum.states import MISSING, UNNAMED, WEIGHT, WINDOW
from keras_accum.warn import warn

_NO_COUNT = (
    "This file doesn't hold the number of updates that RMSprop had made. With `decay`, the "
    "learning rate of {name} starts again at its initial value. If you know the number n of "
    "updates, set it: "
    "`optimizer.set_state({{**optimizer.get_state(), 'completed_updates': n}})`."
)

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


class Lists:
    """Gives names to the arrays of a list, for the state of one optimizer."""

    def __init__(self, optimizer, accumulation, state):
        self._optimizer, self._accumulation, self._state = optimizer, accumulation, state
        self._port = accumulation.port

    @property
    def owner(self):
        """The optimizer, for messages."""
        name, accum_iters = type(self._optimizer).__name__, self._accumulation.options.accum_iters
        return f"this {name}(accum_iters={accum_iters}), whose rule is {self._port.rule_name}"

    def unnamed(self, arrays):
        """Return a list of arrays as a state whose rule's arrays wait for their names."""
        rule, options = self._port.rule_name, self._accumulation.options
        if rule in NO_COUNT and arrays and arrays[0].ndim:
            self._warn_of_no_count()
            arrays = [np.asarray(0), *arrays]
        has_rate = "learning_rate" in self._port.shared_variables()
        scalars = len(KERAS_2_SCALARS.get(rule, ()))
        state = without_names(arrays, scalars, has_rate, options.accumulates, options.weighs)
        if state is None:
            raise self._no_state(arrays)
        return self._counted(state, is_of_stock="window_position" not in state)

    def named(self, arrays, shapes):
        """Return a list of arrays as a state of an optimizer with these names and shapes."""
        options, variables = self._accumulation.options, states.count(shapes)
        rule, slots = self._port.rule_name, names_of(shapes, self._port.rule_name)
        tf_keras = with_unapplied(rule, *slots, variables, options.accumulates, options.weighs)
        orders = [shapes, slot_major(rule, *slots, variables, options.accumulates), tf_keras]
        known = {"state_format": (), "unapplied": (), MISSING: (variables + 1,), **shapes}
        # Version 0.1.0 doesn't write the counts of missing gradients, nor does a host before a
        # gradient is missing.
        without = [[name for name in names if name != MISSING] for names in orders]
        orders = [list(shapes), *(names + last for names in without for last in ([MISSING], []))]
        found = (with_names(arrays, names, known) for names in orders)
        state = next((state for state in found if state is not None), None)
        is_of_stock = state is None or not options.accumulates
        if state is None:
            state = self._of_stock(arrays, shapes) or self._of_keras_2(arrays, slots[1])
        if state is None:
            raise self._no_state(arrays)
        state = self._counted(state, is_of_stock)
        # A LossScaleOptimizer of tf_keras adds skipped micro-batches to `iterations`.
        state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        return state

    def _of_stock(self, arrays, shapes):
        """Return a list of the stock optimizer as a state, or None."""
        of_stock = self._port.stock_list(shapes)
        state = with_names(arrays, list(of_stock), of_stock)
        if state is None:
            return None
        # The list may have variables that are part of no state, and lack scalars.
        left = [n for n in shapes if states.is_scalar_of_rule(n) and n not in state]
        kept = {name: self._port.read(self._state.named()[name]) for name in left}
        return {name: array for name, array in {**state, **kept}.items() if name in shapes}

    def _of_keras_2(self, arrays, slots):
        state = from_keras_2(arrays, self._port.rule_name, slots)
        has_count = not arrays or np.ndim(arrays[0]) == 0
        if state is not None and not has_count:
            self._warn_of_no_count()
        return state

    def _counted(self, state, is_of_stock):
        """Return a state with the number of updates, also if the list counts something else."""
        states.check_numbers(state, self.owner)
        if is_of_stock:
            self._state.waiting.convert_count(state, self._accumulation.options.accum_iters)
        return state

    def _warn_of_no_count(self):
        if arguments.config_of(self._optimizer).get("decay"):
            warn(_NO_COUNT.format(name=type(self._optimizer).__name__))

    def _no_state(self, arrays):
        """Return an error that says that a list of arrays isn't a state."""
        first = f", the first of shape {np.shape(arrays[0])}," if len(arrays) else ""
        return states.StateError(
            f"A list of {len(arrays)} arrays{first} is not a state of {self.owner}. The list "
            "belongs to another optimizer, is truncated, or was written by a newer "
            "keras_accum. Nothing was changed."
        )


def names_of(names, rule):
    """Return what a rule keeps, by the names of its state: a tuple of scalars, a tuple of slots."""
    names = [name[len(rule) + 1 :] for name in names if name.startswith(f"{rule}.")]
    slots = tuple(name[: -len(".0")] for name in names if states.index_of(name) == 0)
    return tuple(n for n in names if states.index_of(n) is None), slots


def slot_major(rule, scalars, slots, variables, accumulates):
    """Return the names of a state for this number of variables, in the order of Keras 2's lists."""
    indices = range(variables)
    names = ["completed_updates"]
    names += [states.scalar_name(rule, scalar) for scalar in scalars]
    names += [states.slot_name(rule, slot, i) for slot in slots for i in indices]
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


def without_names(arrays, scalars, is_rate_known, accumulates, weighs):
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
        sums = arrays[len(arrays) - len(found[2]) :]
        # The newer style of tf_keras has the counts of missing gradients before the sums.
        is_missing = [array.dtype.kind == "i" for array in (sums[0], sums[-1])] if sums else []
        count = len(sums) - weighs - any(is_missing)
        if count < 1 or any(is_missing) and sums[-is_missing[1]].shape != (count + 1,):
            return None
        window = ["state_format", *WINDOW]
        window += ["unapplied"] * (len(found[1]) == 5 and not has_rate)  # only on tf_keras
        of_sums = [WEIGHT] * weighs + [f"accumulator.{i}" for i in range(count)]
        window += [MISSING] * is_missing[0] + of_sums + [MISSING] * is_missing[1]
    rule = [f"{UNNAMED}{i}" for i in range(len(counts), len(arrays) - len(window))]
    state = dict(zip(counts + rule + window, arrays))
    state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
    if rule and "unapplied" in window:  # it still tells the order of the rule's arrays
        state["unapplied"] = np.asarray(0)
    return state


def order(state):
    """Return the names of a state with unnamed arrays, in the order of their list."""
    rule = sorted(filter(states.is_unnamed, state), key=lambda name: int(name[len(UNNAMED) :]))
    has_rate = "learning_rate" in state and f"{UNNAMED}1" not in state
    sums = [f"accumulator.{i}" for i in range(states.count(state))]
    window = [name for name in (*WINDOW, "unapplied", WEIGHT, *sums, MISSING) if name in state]
    window[:0] = ["state_format"] * ("accum_iters" in state)
    return ["completed_updates"] + ["learning_rate"] * has_rate + rule + window


def with_names(arrays, names, shapes):
    """Return a list of arrays as a state with these names, None if the arrays can't be that."""
    if len(arrays) != len(names) or not shapes.keys() >= set(names):
        return None
    # The shapes tell enough of a rule: Adafactor has integers in place of some slots.
    fits = all(
        np.shape(array) == shapes[name] and ("." in name or _can_be(name, array))
        for name, array in zip(names, arrays)
    )
    return dict(zip(names, arrays)) if fits else None


def _can_be(name, array):
    """True if an array of a list without names has a data type of this part of a state."""
    kind = array.dtype.kind
    if name in (*WINDOW, MISSING, "state_format", "unapplied"):
        return kind in "iu"
    if states.is_scalar_of_rule(name):
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
    scalars = [states.scalar_name(rule, scalar) for scalar in KERAS_2_SCALARS.get(rule, ())]
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
                state[states.slot_name(rule, slot, i)] = array
            elif slot == "velocity_hat" and array.shape != (1,):
                return None  # a slot of AMSGrad, not the placeholder of Adam
    if left_out and iterations:
        warn(
            f"This list doesn't hold {', '.join(left_out)}, which Keras 2.2 didn't save: 1 is "
            "taken, as Keras 2.3 does. The first updates will be larger than with the true value.",
        )
    return state
