"""The state of an accumulating optimizer on Keras 3: reading, writing, loading and counting."""

import keras
import numpy as np

from keras_accum import base, family, rules, states
from keras_accum.keras3 import variables
from keras_accum.keras3.backend import to_numpy


class State(variables.StateByNames, base.Optimizer):
    """A base class that comes before a stock optimizer class."""

    # The error about a state that waited for other variables than those that came.
    _misfit = None

    def build(self, variables):
        if self._misfit is not None:
            raise self._misfit  # a step would start with a fresh optimizer
        if self.built:
            return
        if not variables:
            # Keras's HDF5 loader builds on an empty list. If no state is loaded afterwards, a step
            # must raise an error, as it does with `built`, and not start with a fresh optimizer.
            self.built = True
            return
        accumulation, port = self._accumulation, self._accumulation.port
        with port.eagerly():
            state = self._take_waiting(variables)
        with port.build_scope(variables):
            before = set(vars(self))
            super().build(variables)
            port.variables = self._trainable_variables
            family.check_attributes(self, set(vars(self)) - before)
            self._track_all()
            self._build_window()
        if state is not None:
            with port.eagerly():
                self._write_waiting(state)
                accumulation.training.start()

    def _write_waiting(self, state):
        try:
            self._write_state(self._fitted_to_variables(state))
        except states.StateError as error:
            self._misfit, self.built = error, False
            raise

    def _build_window(self):
        port = self._accumulation.port
        if self._accumulation.options.reduces_late and any(map(port.overwrites, port.variables)):
            raise ValueError(
                "all_reduce='per_window' can't be used with float8, whose scales are overwritten "
                "by gradients and not summed. Leave all_reduce out."
            )
        super()._build_window()

    @classmethod
    def _from_arguments(cls, config):
        # A class with an optimizer inside has a config of this optimizer, to be read first.
        return cls._from_stock_config(config, None)

    @property
    def completed_updates(self):
        """The number of updates made, as schedules, `decay` and bias correction count. An int."""
        return self._count("completed_updates", to_numpy(self.iterations))

    @property
    def _is_built(self):
        return bool(self._accumulation.port.variables)

    @property
    def variables(self):
        if self._pending:
            return list(self._pending.variables.values())
        # Not the stock optimizer's list, which may have the variables of an inner optimizer twice.
        norms = self._accumulation.norms.variables
        return self._variables + norms * self._accumulation.port.steps_return_state

    def _add_waiting(self, name, array):
        return keras.Variable(array, trainable=False, name=name)

    def _layout(self):
        found = self._state_variables()
        return {n: tuple(v.shape) for n, v in found.items() if n != "state_format"}

    def _expected_layout(self, state, variables):
        if self._has_uniform_slots:
            return super()._expected_layout(state, variables)
        own = f"{self._rule_name}.", "moving_average.", "accumulator."
        known = {
            "completed_updates",
            "learning_rate",
            *states.WINDOW,
            states.WEIGHT,
            states.MISSING,
        }
        return {
            name: np.shape(array)
            for name, array in state.items()
            if name in known or name.startswith(own) or states.is_unnamed(name)
        }

    def _order_of(self, state, variables):
        return super()._order_of(state, variables) if self._has_uniform_slots else list(state)

    def _read_state(self):
        state = {
            name: to_numpy(variable)
            for name, variable in self._state_variables().items()
            if name != "state_format"
        }
        return states.without_idle(state)

    def _keep_waiting(self, state):
        super()._keep_waiting(state)
        self.built = False  # Keras's HDF5 loader calls `build` with an empty list

    def _rate_state(self):
        if not isinstance(self._learning_rate, keras.Variable):
            return {}
        return {"learning_rate": to_numpy(self._learning_rate)}

    def _write_state(self, state):
        found = self._state_variables()
        for name, value in state.items():
            found[name].assign(value)
        if self._misfit is not None:
            self._misfit, self.built = None, True

    def _write_shared(self, state):
        for name, variable in self._shared_variables().items():
            if name in state:
                variable.assign(state[name])

    def _named(self, arrays):
        arrays = variables.without_loss_scale(arrays, self.name)
        if self._is_built or self._has_uniform_slots:
            return super()._named(arrays)
        # Which array is what depends on the variables: the list waits for them.
        is_number = isinstance(self._learning_rate, keras.Variable)
        state = states.unnamed(arrays, is_number, self._accumulation.options.weighs)
        if state is None:
            raise self._no_state(arrays)
        return state

    def _rate_in_use(self):
        rate = float(to_numpy(self.learning_rate))
        return rules.decayed(rate, self.decay, self.completed_updates)
