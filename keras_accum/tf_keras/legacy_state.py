"""The state of a legacy optimizer: its variables, their numbers and their names."""

import numpy as np
import tensorflow as tf

from keras_accum import kernels, states
from keras_accum.states import StateError
from keras_accum.tf_keras.library import legacy
from keras_accum.tf_keras.state import State
from keras_accum.warn import warn


class LegacyState(State):
    """The part of an optimizer that creates, numbers and names its variables."""

    def build(self, var_list):
        """Create the state for these variables, as the first step would.

        The state has the variables in this order. Pass all trainable variables of the model. If
        train steps update only parts of the variables, call `build` before the first step.

        Args:
            var_list: Iterable of trainable variables, in the order of the model.

        Raises:
            ValueError: If train steps were traced that know the variables in a different order.
        """
        var_list = list(var_list)
        port, window = self._accumulation.port, self._accumulation.window
        with tf.init_scope():
            self._create_all_weights(var_list)
            if not port.is_numbered and len(var_list) == len(port.variables):
                if port.has_traced and window is not None and window.missing is not None:
                    raise ValueError(
                        "`build` after train steps were traced that know the variables in another "
                        "order: call `build` before the first step, with all trainable variables "
                        "of the model."
                    )
                self._reorder(var_list)
                port.is_numbered = True

    def _create_all_weights(self, var_list):
        accumulation = self._accumulation
        if accumulation.options.weighs and accumulation.window is not None:
            # A LossScaleOptimizer passes in the weight that `_aggregate_gradients` has appended.
            var_list = [v for v in var_list if v is not accumulation.window.weight]
        kernels.check_no_tensor(var_list)
        state = self._take_waiting(var_list, [variable._unique_id for variable in var_list])
        super()._create_all_weights(var_list)
        window = accumulation.window
        if window is not None and window.missing is None:
            is_partial = len(var_list) < len(accumulation.port.variables)
            if is_partial or states.MISSING in self._deferred_dependencies:
                window.add(states.MISSING)
        if state is not None:
            self._write_state(state)

    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        self._number(var_list)
        self._build_window()

    def _number(self, var_list):
        """Number these variables in the order of the newest list that has new variables.

        A layer that is unfrozen later thus gets its place in the model. Graphs refer to variables
        by their numbers, so only `build` changes the order of known variables.
        """
        port = self._accumulation.port
        found = {variable.ref(): variable for variable in [*port.variables, *var_list]}
        old = [variable.ref() for variable in port.variables]
        new = list(dict.fromkeys(variable.ref() for variable in var_list))
        if len(found) == len(old):
            port.is_numbered = port.is_numbered or new == old
            return
        if old and self._accumulation.options.accumulates:
            self._warn_of_steps_without([found[r] for r in new if r not in set(old)])
        order, is_certain = states.merged(old, new)
        self._reorder([found[reference] for reference in order])
        port.is_numbered = is_certain and (port.is_numbered or len(new) == len(found))

    def _reorder(self, variables):
        """Put the variables into this order, with counts of missing gradients for all of them."""
        port, window = self._accumulation.port, self._accumulation.window
        old, port.variables = port.variables, variables
        if window is None:
            return
        window.add("accumulator")
        if window.missing is not None:
            self._recount_missing_gradients(window, old)

    def _warn_of_steps_without(self, variables):
        # The warning may be needless: TensorFlow keeps graphs alive, so it isn't known whether the
        # traced step is still in use.
        if self._accumulation.port.has_traced:
            warn(
                f"{self._name} has met new variables ({variables[0].name}, ...) after a train step "
                "was traced without them. That train step can't update the new variables: at the "
                "end of a window, their gradients would be left over. If you have compiled the "
                "model of that train step again since, ignore this warning. Otherwise call "
                "`optimizer.build(all_variables)` before the first step.",
            )

    def _recount_missing_gradients(self, window, known):
        """Replace the counts by counts for all variables; the `known` variables keep theirs."""
        port, old = self._accumulation.port, window.missing
        self._weights = [variable for variable in self._weights if variable is not old]
        window.add(states.MISSING)
        if tf.executing_eagerly():
            *counts, number = port.read(old)
            is_open = number == self.completed_updates
            new = np.full(len(port.variables) + 1, self.window_position if is_open else 0)
            new[-1] = number
            order = [variable.ref() for variable in port.variables]
            for variable, count in zip(known, counts):
                new[order.index(variable.ref())] = count
            port.write(window.missing, new)

    def add_slot(self, var, slot_name, *args, **kwargs):
        # TensorFlow also calls this method, when it reads a checkpoint.
        port = self._accumulation.port
        if slot_name != port.sum_slot:
            return super().add_slot(var, slot_name, *args, **kwargs)
        with port.sum_scope(), port.sum_scope_of(var):
            return super().add_slot(var, slot_name, *args, **kwargs)

    @property
    def _rule_slots(self):
        return tuple(self._accumulation.port.slots)

    @property
    def _rule_scalars(self):
        return tuple(self._accumulation.port.scalars)

    @property
    def _initial_values(self):
        port = self._accumulation.port
        return {} if port.rule else port.layout.initial

    # -- names -----------------------------------------------------------------------------------

    @property
    def weights(self):
        """The variables of the state in the order of files, whatever created a variable first."""
        if not (self._pending or self._is_built):
            return super().weights
        self._check_numbers()
        return list(self._state_variables().values())

    def variables(self):
        return self.weights

    def _list_names(self, variables, stock):
        options, port = self._accumulation.options, self._accumulation.port
        accumulates = options.accumulates and not stock
        slots, scalars = self._rule_slots, self._rule_scalars
        names = states.with_unapplied(
            self._rule_name, scalars, slots, variables, accumulates, options.weighs
        )
        if not port.rule and port.layout.by_variable:
            of_slots = slice(1 + len(scalars), 1 + len(scalars) + len(slots) * variables)
            names[of_slots] = sorted(names[of_slots], key=states.index_of)
        return names

    def _state_names(self, variables):
        names = [n for n in self._list_names(variables, stock=False) if n != "unapplied"]
        last = [states.MISSING] * self._accumulation.options.accumulates
        return names + last + list(self._rate_state())

    def _state_variables(self):
        """Return all weights by their names, in the order of `_list_names`."""
        if self._pending:
            return self._pending.variables
        port, window = self._accumulation.port, self._accumulation.window
        found = {"completed_updates": self.iterations}
        scalars = port.scalar_variables if self._is_built else ()
        for name, scalar in zip(self._rule_scalars, scalars):
            found[states.scalar_name(self._rule_name, name)] = scalar
        for name, slot in port.slots.items():
            for i, variable in enumerate(port.variables):
                found[states.slot_name(self._rule_name, name, i)] = self.get_slot(variable, slot)
        if window is not None:
            found.update(window.named)
        order = self._list_names(len(port.variables), stock=False)
        return {name: found[name] for name in [*order, states.MISSING] if name in found}

    def _layout(self):
        return self._expected_layout({}, self._accumulation.port.variables)

    def _expected_layout(self, state, variables):
        shapes = states.layout(self._state_names(len(variables)), variables)
        if not self._accumulation.port.rule:
            for slot in self._accumulation.port.layout.scalar_slots:
                names = [states.slot_name(self._rule_name, slot, i) for i in range(len(variables))]
                shapes.update(dict.fromkeys(names, ()))
        return shapes

    def _write_state(self, state):
        window = self._accumulation.window
        if window is not None and window.missing is None:
            state = states.without_idle(state)
            if states.MISSING in state:
                window.add(states.MISSING)
        super()._write_state(state)

    def _check_numbers(self):
        if not self._accumulation.port.is_numbered:
            reason = "its variables came in parts, so their order in the model isn't known"
        elif not self._is_built and not self._pending and self._has_deferred:
            reason = "a checkpoint will restore its slots when the variables exist"
        else:
            return
        raise StateError(
            f"{type(self).__name__} can't be read, written or saved as a whole yet: {reason}. "
            "Call `optimizer.build(model.trainable_variables)` first."
        )

    @property
    def _has_deferred(self):
        """True if the counters show earlier steps whose slots aren't created yet."""
        names = self._list_names(1, stock=False)
        counts = self.completed_updates or self.window_position
        return bool(counts) and any(states.index_of(name) is not None for name in names)

    def _rate_in_use(self):
        port = self._accumulation.port
        is_nadam = self._stock_class is legacy.Nadam  # its `decay` belongs to the momentum
        rate = self.learning_rate if is_nadam else self._decayed_lr(port.scalar_dtype)
        return float(port.read(rate))
