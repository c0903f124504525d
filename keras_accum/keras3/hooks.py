"""Overrides of what Keras and the stock optimizer's own code call, in a train step and after it."""

import importlib

import keras
from keras import ops

from keras_accum import rules
from keras_accum.norms import UPDATE_NORM

backend = importlib.import_module(f"keras_accum.keras3.backend_{keras.backend.backend()}")


class Hooks(backend.Hooks):
    """A base class that comes before the stock class."""

    @backend.as_written
    def apply(self, grads, trainable_variables=None):
        accumulation = self._accumulation
        accumulation.has_stepped = True
        if accumulation.options.is_stock:
            result = super().apply(grads, trainable_variables)
            accumulation.port.check_update()
            return result
        grads, known = list(grads), accumulation.port.variables
        if not grads:
            return None
        if trainable_variables is None:
            if not self.built or len(grads) != len(known):
                return super().apply(grads)  # raises the stock optimizer's error
            trainable_variables = known
        trainable_variables = list(trainable_variables)
        with keras.name_scope(self.name, caller=self):  # as in the stock class, for equal paths
            self.build(trainable_variables)
            self._check_variables_are_known(trainable_variables)
            with accumulation.port.taking(grads, trainable_variables) as grads:
                pairs = self._filter_empty_gradients(grads, trainable_variables)
                accumulation.micro_batch(*map(list, pairs))

    def _get_current_learning_rate(self):
        # Not the property `learning_rate`: weight decay on PyTorch calls this method.
        rate = super()._get_current_learning_rate()
        decay, is_updating = self._accumulation.options.decay, self._accumulation.port.selection
        if not (decay and is_updating):
            return rate
        dtype = self._accumulation.port.scalar_dtype
        return rules.decayed(ops.cast(rate, dtype), decay, ops.cast(self._iterations, dtype))

    @property
    def ema_overwrite_frequency(self):
        # Hidden from Keras, which would add a conditional: `_backend_apply_gradients` below
        # overwrites the weights without one.
        is_updating = self._accumulation.port.selection is not None
        return None if is_updating else self._ema_overwrite_frequency

    @ema_overwrite_frequency.setter
    def ema_overwrite_frequency(self, frequency):
        self._ema_overwrite_frequency = frequency

    def _clip_gradients(self, grads):
        selection = self._accumulation.port.selection
        if selection is not None:
            self._accumulation.norms.write(UPDATE_NORM, grads, selection.of_update)
        return super()._clip_gradients(grads)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        selection = self._accumulation.port.selection
        if selection is not None:
            selection.after_update_steps()

    def _backend_apply_gradients(self, grads, trainable_variables):
        super()._backend_apply_gradients(grads, trainable_variables)
        port = self._accumulation.port
        selection = port.selection
        if selection is not None:
            if self.use_ema and self._ema_overwrite_frequency:
                port.across(self._overwrite_with_averages)
            selection.before_constraints()

    def _overwrite_with_averages(self):
        port = self._accumulation.port
        due = (port.value(port.updates) + 1) % self._ema_overwrite_frequency == 0

        def overwrite(variable, target):
            average = self._averages_of_weights[port.index(variable)]
            if average is not None:
                value = ops.where(due, port.value(average), port.value(target))
                self.assign(target, value)

        with port.selection.by_update():
            for variable in port.variables:
                port.on(variable, overwrite)

    # -- moving averages, for Keras ----------------------------------------------------------------

    @property
    def _model_variables_moving_average(self):
        """The averages of the weights, which Keras reads at the end of `fit` and in SwapEMAWeights.

        Before the first update there is nothing to average: the averages are set to the weights.
        """
        port = self._accumulation.port
        if not (port.is_traced() or self.completed_updates):
            for variable, average in zip(port.variables, self._averages_of_weights):
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
        self._accumulation.training.end()
        super().finalize_variable_values(var_list)
        if self.use_ema:
            # On JAX, a weight and its average now share one array, which a train step would refuse
            # to take twice.
            for average in self._averages_of_weights:
                if average is not None:
                    average.assign(ops.copy(average))
