"""What Keras calls of an optimizer, in a train step and around it."""

import keras
from keras import ops

from keras_accum import optimizer, schedule
from keras_accum.training import UPDATE_NORM


class Hooks(optimizer.Accumulating):
    """Keras 3 on any backend. A base class that comes before the stock class."""

    @classmethod
    def _stock_arguments(cls, args, kwargs):
        kwargs = dict(kwargs)
        if "name" in cls.__signature__.parameters:
            kwargs.setdefault("name", None)  # Keras makes one of the class's name
        decay = kwargs.pop("decay", None)
        if decay:
            kwargs["learning_rate"] = cls._decaying(*args[:1], decay=decay, **kwargs)
        return kwargs

    @classmethod
    def _decaying(cls, learning_rate=None, *, decay, **kwargs):
        """Return the schedule that is `decay` of Keras 2: rate / (1 + decay * updates)."""
        if learning_rate is None:
            learning_rate = cls.__signature__.parameters["learning_rate"].default
        if not (schedule.is_number(decay) and decay > 0 and schedule.is_number(learning_rate)):
            raise ValueError(
                "`decay` must be a number >= 0, and `learning_rate` a number with it: write what "
                "both make together as a schedule. "
                f"Received: decay={decay}, learning_rate={learning_rate}"
            )
        return keras.optimizers.schedules.InverseTimeDecay(learning_rate, 1, decay)

    # -- variables ---------------------------------------------------------------------------------

    def build(self, variables):
        # Keras's HDF5 loader builds on an empty list, and then calls `set_weights`: the list waits.
        if self.built or not variables:
            return
        accumulation, port = self._accumulation, self._accumulation.port
        with port.build_scope(variables):
            super().build(variables)
            port.variables = self._trainable_variables
            accumulation.open_window()
            for weight, average in zip(variables, self._averages()):
                if average is not None:  # before the first update, there is nothing to average
                    average.assign(ops.copy(weight))
        with port.eagerly():
            accumulation.state.built()

    def _averages(self):
        return self._model_variables_moving_average if self.use_ema else ()

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        variable = super().add_variable_from_reference(
            reference_variable, name=name, initializer=initializer
        )
        port = self._accumulation.port
        port.slots[name, port.key(reference_variable)] = variable
        return variable

    @property
    def variables(self):
        accumulation = self._accumulation
        if not self.built and accumulation.state.waiting is not None:
            accumulation.state.check_is_built("variables")
        norms = accumulation.norms.variables if accumulation.port.steps_return_state else []
        return self._variables + norms

    @property
    def lr(self):
        """Another name for `learning_rate`, from Keras 2."""
        return self.learning_rate

    @lr.setter
    def lr(self, learning_rate):
        self.learning_rate = learning_rate

    # -- a micro-batch -----------------------------------------------------------------------------

    def apply(self, grads, trainable_variables=None):
        accumulation = self._accumulation
        accumulation.has_stepped = True
        if self.built and accumulation.state.waiting is not None:
            accumulation.state.built()  # raises once more what `build` has raised
        if accumulation.options.is_stock:
            return super().apply(grads, trainable_variables)
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

    # -- an update, inside of the stock class's `apply` --------------------------------------------

    def _clip_gradients(self, grads):
        selection = self._accumulation.port.selection
        if selection is not None:
            self._accumulation.norms.write(UPDATE_NORM, grads, selection.switch)
        return super()._clip_gradients(grads)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        selection = self._accumulation.port.selection
        if selection is not None:
            selection.after_update_steps()

    def _backend_apply_gradients(self, grads, trainable_variables):
        super()._backend_apply_gradients(grads, trainable_variables)
        selection = self._accumulation.port.selection
        if selection is not None:
            if self.use_ema and self._ema_overwrite_frequency:
                with selection.by_update():
                    self._overwrite_with_averages(selection.switch)
            selection.before_constraints()

    @property
    def ema_overwrite_frequency(self):
        # Hidden from Keras in an update, in which Keras would overwrite by a conditional.
        is_updating = self._accumulation.port.selection is not None
        return None if is_updating else self._ema_overwrite_frequency

    @ema_overwrite_frequency.setter
    def ema_overwrite_frequency(self, frequency):
        self._ema_overwrite_frequency = frequency

    def _overwrite_with_averages(self, switch):
        """Overwrite the weights with their moving averages, if this update is due for it."""
        port = self._accumulation.port
        due = (port.value(port.updates) + 1) % self._ema_overwrite_frequency == 0
        pairs = [(w, a) for w, a in zip(port.variables, self._averages()) if a is not None]

        def overwrite(weight, target, due, average):
            target.assign(ops.where(due, average, port.value(target)))

        def across(due, *averages):
            for (weight, _), average in zip(pairs, averages):
                port.on(weight, overwrite, due, average)

        due = ops.logical_and(due, switch > 0)
        port.across(across, due, *(port.value(average) for _, average in pairs))

    # -- after a training --------------------------------------------------------------------------

    def finalize_variable_values(self, var_list):
        # After an error in a train step on JAX, the variables have no values.
        if self._iterations._value is None:
            return
        self._accumulation.training.end()
        if not self.completed_updates:
            return  # the averages would be those of other weights
        super().finalize_variable_values(var_list)
        for average in self._averages():
            # On JAX, a weight and its average now share one array, which a train step would refuse
            # to take twice.
            if average is not None:
                average.assign(ops.copy(average))
