"""The state of an optimizer by names: reading, writing and counting."""

import numpy as np
import tensorflow as tf

from keras_accum import base, kernels, states
from keras_accum.states import StateError
from keras_accum.tf_keras.library import keras, legacy


class State(base.Optimizer):
    """The part of an optimizer that reads and writes its variables."""

    @property
    def completed_updates(self):
        """The number of updates made, as schedules, `decay` and bias correction count. An int."""
        port, window = self._accumulation.port, self._accumulation.window
        unapplied = 0 if window is None else port.read(window.named["unapplied"])
        return int(port.read(port.updates) - unapplied)

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
        variables = self._accumulation.port.variables
        return states.layout(self._state_names(len(variables)), variables)

    def _read_state(self):
        found = self._state_variables()
        state = dict(zip(found, keras.backend.batch_get_value(list(found.values()))))
        state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        state.pop("state_format", None)
        return states.without_idle({**state, **self._rate_state()})

    def _rate_state(self):
        rate = self._hyper.get("learning_rate")
        if rate is None or callable(rate):  # also a schedule
            return {}
        return {"learning_rate": np.asarray(keras.backend.get_value(rate))}

    def _write_state(self, state):
        window = self._accumulation.window
        if window is not None:
            state = {**state, "unapplied": np.asarray(0)}
            if window.missing is None:
                state = states.without_idle(state)
            if window.missing is None and states.MISSING in state:
                window.add(states.MISSING)
        if "learning_rate" in state:
            state = dict(state)
            self.learning_rate = float(state.pop("learning_rate"))
        variables = self._state_variables()
        if not tf.executing_eagerly():
            keras.backend.batch_set_value([(variables[name], state[name]) for name in state])
            return
        for name, value in state.items():
            kernels.write(variables[name], value)

    def _shared_variables(self):
        return {"completed_updates": self.iterations}

    def _add_waiting(self, name, array):
        return keras.backend.variable(array, dtype=array.dtype, name=name)

    def _write_shared(self, state):
        if "learning_rate" in state:
            self.learning_rate = float(state["learning_rate"])
        keras.backend.set_value(self.iterations, state["completed_updates"])

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
