"""The state of an accumulating optimizer on Keras 3: reading, writing, loading and counting."""

import keras
import numpy as np
from keras import ops

from keras_accum import base, rules, states
from keras_accum.keras3 import variables


class State(variables.StateByNames, base.Optimizer):
    """A base class that comes before a stock optimizer class."""

    _is_told_of_the_end = True

    # The counters and sums, None before they are created. Set in `__dict__`, to bypass Keras's
    # attribute tracking.
    _window = None

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
        with self._eagerly():
            state = self._take_waiting(variables)
        with self._build_scope(variables):
            before = set(vars(self))
            super().build(variables)
            base.check_attributes(self, set(vars(self)) - before)
            self._track_all()
            self._build_window()
        if state is not None:
            with self._eagerly():
                self._write_waiting(state)
                self._start_training()

    def _write_waiting(self, state):
        try:
            self._write_state(self._fitted_to_variables(state))
        except states.StateError as error:
            self._misfit, self.built = error, False
            raise

    def _build_window(self):
        if not (self._accumulates and self._trainable_variables):
            return
        overwrites = map(self._overwrite_variable_with_gradient, self._trainable_variables)
        if self._reduces_late and any(overwrites):
            raise ValueError(
                "all_reduce='per_window' can't be used with float8, whose scales are overwritten "
                "by gradients and not summed. Leave all_reduce out."
            )
        self.__dict__["_window"] = variables.Window(self, self._trainable_variables)

    @classmethod
    def _from_arguments(cls, config):
        # A class with an optimizer inside has a config of this optimizer, to be read first.
        return cls._from_stock_config(config, None)

    @property
    def _scalar_dtype(self):
        return "float64" if keras.config.floatx() == "float64" else "float32"

    @property
    def completed_updates(self):
        """The number of updates made, as schedules, `decay` and bias correction count. An int."""
        return self._count("completed_updates", variables.to_numpy(self.iterations))

    def _counters(self):
        if self._pending:
            return self._pending.counters
        return {} if self._window is None else self._window.counters

    def _get_scalar(self, variable):
        return variables.to_numpy(variable)

    def _set_count(self, counter, value):
        counter.assign(value)

    @property
    def _is_built(self):
        return bool(self._trainable_variables)

    @property
    def variables(self):
        if self._pending:
            return list(self._pending.variables.values())
        # Not the stock optimizer's list, which may have the variables of an inner optimizer twice.
        return self._variables + self._watched_norms * self._steps_return_state

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
            name: variables.to_numpy(variable)
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
        return {"learning_rate": variables.to_numpy(self._learning_rate)}

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
        state = states.unnamed(arrays, is_number, self._weighs)
        if state is None:
            raise self._no_state(arrays)
        return state

    # -- norms that train steps write --------------------------------------------------------------

    def _add_norm(self, name):
        with self._variable_scope():
            return keras.Variable(
                -1.0,
                dtype=self._scalar_dtype,
                trainable=False,
                aggregation="only_first_replica",
                name=name,
            )

    def _write_norm(self, name, tensors, switch):
        """Write the global norm of these tensors if the norm is watched and the switch is 1."""
        if name in self._watched:
            dtype = self._scalar_dtype
            squares = [ops.sum(ops.square(ops.cast(self._dense(t), dtype))) for t in tensors]
            norm, old = ops.sqrt(sum(squares)), self._value_of(self._norms[name])
            self._norms[name].assign(ops.where(switch > 0, norm, old))

    def _rate_in_use(self):
        rate = float(variables.to_numpy(self._get_current_learning_rate()))
        return rules.decayed(rate, self.decay, self.completed_updates)

    # -- moving averages, for Keras ----------------------------------------------------------------

    @property
    def _model_variables_moving_average(self):
        """The averages of the weights, which Keras reads at the end of `fit` and in SwapEMAWeights.

        Before the first update there is nothing to average: the averages are set to the weights.
        """
        if not (self._is_traced() or self.completed_updates):
            for variable, average in zip(self._trainable_variables, self._averages_of_weights):
                if average is not None:
                    average.assign(ops.copy(variable))
        return self._averages_of_weights

    @_model_variables_moving_average.setter
    def _model_variables_moving_average(self, averages):
        self._averages_of_weights = averages

    def finalize_variable_values(self, var_list):
        # Keras calls this at the end of `fit`. After an error in a train step on JAX, the variables
        # have no values.
        if self._iterations._value is None:
            return
        self._end_training()
        super().finalize_variable_values(var_list)
        if self.use_ema:
            # On JAX, a weight and its average now share one array, which a train step would refuse
            # to take twice.
            for average in self._averages_of_weights:
                if average is not None:
                    average.assign(ops.copy(average))
