"""What the optimizers of all hosts do with a state: read it, write it, load it.

No host is imported here. Each host reads a state from its variables and writes a state to them.
"""

from functools import partial

import numpy as np

from keras_accum import states
from keras_accum.warn import warn

_NO_COUNT = (
    "This file doesn't hold the number of updates that RMSprop had made. With `decay`, the "
    "learning rate of {name} starts again at its initial value. If you know the number n of "
    "updates, set it: "
    "`optimizer.set_state({{**optimizer.get_state(), 'completed_updates': n}})`."
)


class State:
    """A state by names. Besides the members here, a host defines

    * `_shared_variables()`: the variables that exist before `build`, by their names in a state;
    * `_add_waiting(name, array)`: create a variable that holds this array;
    * `_is_built`: True if slots and accumulators exist;
    * `_rule_slots`, `_rule_scalars`: the names of what the rule keeps per variable and once for all
      variables, in the order of the host's files;
    * `_list_names(n, stock)`: the names of the state for n variables, or of the stock optimizer's
      state, in the order of the host's files;
    * `_layout()`: the names and shapes of the built state;
    * `_rate_state()`: the learning rate as part of a state, if the learning rate is a number;
    * `_read_state()`: the built state, or else the waiting state;
    * `_write_state(state)`: write all variables;
    * `_write_shared(state)`: write those values of a state whose variables exist already.
    """

    # The initial values of slots and scalars that don't start at zero, by their names in a state.
    _initial_values = {}

    @property
    def _rule_name(self):
        """The name of the rule in a state. AdamW is Adam with a different weight decay."""
        if getattr(self, "amsgrad", False):
            return "AMSGrad"
        name = self._stock_class.__name__
        return {"AdamW": "Adam"}.get(name, name)

    def get_state(self):
        """Return the whole state as `{name: NumPy array}`, to save or to pass to `set_state`.

        The names and shapes are the same on every Keras, and `np.savez` takes the dictionary:

        - `state_format`: the version of this layout, 1.
        - `completed_updates`: integer scalar, the number of updates made.
        - `learning_rate`: scalar, if the learning rate is a number.
        - `<Rule>.<slot>.<i>`: a slot of trainable variable i, for example `Adam.momentum.0`.
        - `<Rule>.<scalar>`: what a rule keeps once for all variables, for example
          `Nadam.u_product`.
        - `moving_average.<i>`: the moving average of variable i, with `use_ema`.
        - `window_position`, `window_length`, `accum_iters`, with `accum_iters` > 1: the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window. If `accum_iters` is a function, the last is the length of
          the latest window.
        - `accumulator.<i>`, with `accum_iters` > 1: the gradient sum of the open window.
        - `window_weight`, with `reduction="weighted"`: the weight of the gradient sum.
        - `missing_gradients`, if gradients have been missing in the open window: for each variable,
          the number of micro-batches in which its gradient was missing. The last element is
          `completed_updates`.

        Returns:
            A new dictionary of arrays.
        """
        self._check_numbers()
        state = {name: states.portable(array) for name, array in self._read_state().items()}
        return {"state_format": np.asarray(states.FORMAT), **state}

    def set_state(self, state):
        """Continue from a state that `get_state` returned, on this Keras or on another.

        An optimizer that has no variables yet keeps the state until its variables are created.

        Args:
            state: `{name: array}`. `learning_rate` is optional. The window is optional, too:
                without a window, a fresh window starts. The trainable variables of the model must
                have the same order.

        Raises:
            keras_accum.StateError: If the state doesn't fit this optimizer. The message names
                everything that doesn't fit, and the optimizer is unchanged.
        """
        state = states.as_arrays(state)
        if not self._is_built:
            self._keep_waiting(state)
            return
        self._check_numbers()
        self._write_state(self._fitted_to_variables(state))

    def _fitted_to_variables(self, state):
        """Return a complete state, with all names, of the built optimizer."""
        layout = self._layout()
        state = states.fitted(state, layout, self._described)
        if any(map(np.iscomplexobj, state.values())):
            kept = self._read_state()
            is_complex = {name: np.iscomplexobj(array) for name, array in kept.items()}
            states.check_complex(state, is_complex.get, self._described)
        return self._completed(state, layout)

    @property
    def _pending(self):
        return self._accumulation.pending

    def _keep_waiting(self, state):
        """Keep a state until the variables are created."""
        has_scalars = any(map(states.is_scalar_of_rule, state))
        state = self._fitted(state, states.by_index(state))
        self._write_shared(state)
        self._pending.drop()
        variables = states.count(state)
        if variables or has_scalars:
            names = self._order_of(state, variables)
            self._pending.hold(state, names, self._shared_variables(), self._add_waiting)

    def _order_of(self, state, variables):
        """Return the names of a state in the order of the host's files."""
        names = self._list_names(variables, stock=False)
        if states.MISSING in states.without_idle(state):
            names = _ending(lambda _: names, [states.MISSING], variables)
        return names

    def _take_waiting(self, variables, keys=()):
        """Take out the state that waits for these variables; None if no state waits."""
        if not self._pending:
            return None
        state = self._fitted(self._pending.in_order(self._read_state(), keys), variables)
        real = {i for i, v in enumerate(variables) if "complex" not in str(v.dtype)}
        states.check_complex(state, lambda n: states.index_of(n) not in real, self._described)
        self._pending.drop()
        return state

    def _fitted(self, state, variables):
        """Return a complete state for these variables. Only their shapes matter."""
        layout = self._expected_layout(state, variables)
        state = states.fitted(state, layout, self._described)
        return self._completed(state, layout)

    def _completed(self, state, layout):
        initial = {f"{self._rule_name}.{name}": n for name, n in self._initial_values.items()}
        length = self._accumulation.options.length_at(int(state["completed_updates"]))
        return states.completed(state, layout, length, initial)

    def _expected_layout(self, state, variables):
        """Return the names and shapes of a state for these variables."""
        return states.layout(self._state_names(len(variables)), variables)

    def _complete_waiting(self):
        """Complete the waiting state, after accum_iters was set that the file didn't hold."""
        if self._pending or self._pending.micro_batches is not None:
            accum_iters = self._accumulation.options.accum_iters
            self.set_state(self._pending.recounted(self.get_state(), accum_iters))
            self._pending.micro_batches = None

    def _check_numbers(self):
        """Raise a StateError if the order of the variables in the model isn't known."""

    def _check_is_built(self, method):
        if not self._is_built:
            raise ValueError(
                f"`{method}` before the optimizer has its variables: call "
                "`optimizer.build(model.trainable_variables)` first."
            )

    def _state_names(self, variables):
        """Return the names of the state for this number of variables."""
        return self._list_names(variables, stock=False)

    @property
    def _described(self):
        name, accum_iters = type(self).__name__, self._accumulation.options.accum_iters
        return f"this {name}(accum_iters={accum_iters}), whose rule is {self._rule_name}"


class Files(State):
    """A state in files, of which some are lists of arrays without names."""

    def set_weights(self, weights):
        """Continue from a list of arrays, in the order of the host's files.

        The list may also come from the stock optimizer, or from Keras 2.0 to 2.3.

        Args:
            weights: List of NumPy arrays.

        Raises:
            keras_accum.StateError: If the list is none of these. The optimizer is unchanged.
        """
        waits = self._pending.counts_micro_batches, self._pending.micro_batches
        try:
            self.set_state(self._named(weights))
        except states.StateError:
            self._pending.counts_micro_batches, self._pending.micro_batches = waits
            raise

    def save_own_variables(self, store):
        """Write the state to a Keras file, under the names of `get_state`."""
        for name, value in self.get_state().items():
            store[name] = value

    def load_own_variables(self, store):
        """Read the state from a Keras file of this package or of the stock optimizer."""
        state = states.as_arrays(store)
        if not state:
            name = getattr(self, "name", None) or self._name
            warn(
                f"The file holds no state of {name}, so {name} is unchanged. If the optimizer was "
                "in a LossScaleOptimizer when the file was saved, put it in a LossScaleOptimizer "
                "before loading.",
            )
            return
        if all(map(states.is_index, state)):
            self.set_weights([state[name] for name in sorted(state, key=int)])
        else:
            self.set_state(state)

    def _named(self, arrays):
        arrays = [states.as_array(array) for array in arrays]
        host = partial(self._list_names, stock=False)
        options = self._accumulation.options
        of_rule = self._rule_name, self._rule_scalars, self._rule_slots
        keras2 = partial(states.slot_major, *of_rule, accumulates=options.accumulates)
        tf_keras = partial(
            states.with_unapplied, *of_rule, accumulates=options.accumulates, weighs=options.weighs
        )
        state = None
        for names in (host, keras2, tf_keras):
            # Version 0.1.0 doesn't write the last name, nor does a host before a gradient is
            # missing.
            for last in ([states.MISSING], []):
                if state is None:
                    state = self._named_as(arrays, partial(_ending, names, last))
        is_of_stock = state is None or not self._accumulation.options.accumulates
        if state is None:
            state = self._named_as(arrays, partial(self._list_names, stock=True))
            state = state or self._from_keras_2(arrays)
        if state is None:
            raise self._no_state(arrays)
        states.check_numbers(state, self._described)
        if is_of_stock:
            self._pending.convert_count(state, self._accumulation.options.accum_iters)
        # A LossScaleOptimizer of tf_keras adds skipped micro-batches to `iterations`.
        state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        return state

    def _no_state(self, arrays):
        """Return an error that says that a list of arrays isn't a state."""
        first = f", the first of shape {np.shape(arrays[0])}," if len(arrays) else ""
        return states.StateError(
            f"A list of {len(arrays)} arrays{first} is not a state of {self._described}. The "
            "list belongs to another optimizer, is truncated, or was written by a newer "
            "keras_accum. Nothing was changed."
        )

    def _from_keras_2(self, arrays):
        state = states.from_keras_2(arrays, self._rule_name, self._rule_slots)
        has_count = not arrays or np.ndim(arrays[0]) == 0
        if state is not None and not has_count:
            self._warn_of_no_count()
        return state

    def _warn_of_no_count(self):
        if self.get_config().get("decay"):
            warn(_NO_COUNT.format(name=type(self).__name__))

    def _named_as(self, arrays, names):
        """Return these arrays as a state with the names `names(n)` for n variables, or None."""
        if self._is_built:
            layout = self._layout()
            return states.named(arrays, names(states.count(layout)), layout)
        one, two = len(names(1)), len(names(2))
        variables = (len(arrays) - one) // max(two - one, 1) + 1
        return states.named(arrays, names(variables))


def _ending(names, last, variables):
    """Return the names of a state for this number of variables, with these names at the end."""
    return [name for name in names(variables) if name != states.MISSING] + last
