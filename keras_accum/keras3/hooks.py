"""What Keras calls of an optimizer, in a train step and around it."""

import contextlib
import inspect

import keras
from keras import ops

from keras_accum import host, schedule
from keras_accum.convert import Convertible
from keras_accum.warn import warn

# What is overridden here, or called by a private name, of Keras's own class.
OF_KERAS = (
    *("apply", "stateless_apply", "build", "variables", "add_variable_from_reference"),
    *("get_config", "update_step", "finalize_variable_values", "learning_rate"),
    *("_backend_apply_gradients", "_backend_update_step"),
    *("_get_current_learning_rate", "_update_model_variables_moving_average"),
    *("_filter_empty_gradients", "_check_variables_are_known", "_var_key", "_apply_weight_decay"),
)
host.check_members(keras, keras.optimizers.Optimizer, OF_KERAS)


class MovingAverages(Convertible):
    """What Keras calls for the moving averages of the weights, `use_ema`."""

    @property
    def _model_variables_moving_average(self):
        """The averages, which Keras reads at the end of `fit` and in SwapEMAWeights, too.

        Before the first update there is nothing to average: they are set to the weights. In the
        first update, Keras does that.
        """
        port = self._accumulation.port
        if not (port.is_traced() or port.is_updating or self.completed_updates):
            for weight, average in self._averaged():
                average.assign(ops.copy(weight))
        return self._averages

    @_model_variables_moving_average.setter
    def _model_variables_moving_average(self, averages):
        self._averages = averages

    def _averaged(self):
        """Return pairs of weights and their averages."""
        pairs = zip(self._accumulation.port.variables, self._averages)
        return [(weight, average) for weight, average in pairs if average is not None]

    @property
    def ema_overwrite_frequency(self):
        # Hidden from Keras in an update, in which Keras would overwrite by a conditional.
        return None if self._accumulation.port.is_updating else self._ema_overwrite_frequency

    @ema_overwrite_frequency.setter
    def ema_overwrite_frequency(self, frequency):
        self._ema_overwrite_frequency = frequency

    def _update_model_variables_moving_average(self, trainable_variables):
        super()._update_model_variables_moving_average(trainable_variables)
        port, frequency = self._accumulation.port, self._ema_overwrite_frequency
        if port.is_updating and frequency:
            due = (self._iterations + 1) % frequency == 0
            for weight, average in self._averaged():
                new = ops.where(due, port.value(average), port.value(weight))
                self.assign(weight, new)

    def finalize_variable_values(self, var_list):
        super().finalize_variable_values(var_list)
        if self.use_ema:
            # On JAX, a weight and its average now share one array, which a train step would refuse
            # to take twice.
            for _, average in self._averaged():
                average.assign(ops.copy(average))


class Hooks(MovingAverages):
    """Keras 3 on any backend. A base class that comes before the stock class."""

    _host = "keras3"

    def _stock_arguments(self, kwargs):
        port = self._accumulation.port
        if "name" in inspect.signature(self._stock_class.__init__).parameters:
            kwargs.setdefault("name", None)  # Keras makes one of the class's name
        port.decay = kwargs.pop("decay", 0.0)
        if not (schedule.is_number(port.decay) and port.decay >= 0):
            raise ValueError(f"`decay` must be a number >= 0. Received: decay={port.decay!r}")
        steps = kwargs.get("gradient_accumulation_steps")
        self._check_one_accumulation(steps)
        if steps:
            name = type(self).__name__
            warn(
                f"gradient_accumulation_steps={steps} is Keras's own accumulation, in which "
                "schedules and `completed_updates` count micro-batches. For the accumulation of "
                f"this package, write {name}(accum_iters={steps})."
            )
        return kwargs

    def _check_one_accumulation(self, steps):
        if steps and not self._is_stock:
            accum_iters = self._accumulation.options.accum_iters
            raise ValueError(
                "`gradient_accumulation_steps` is Keras's own accumulation, and can't be combined "
                "with the arguments of this package: leave it out, and give `accum_iters`. "
                f"Received: gradient_accumulation_steps={steps}, accum_iters={accum_iters}"
            )

    def get_config(self):
        return {**super().get_config(), "decay": self.decay}

    # True after a config of tf_keras's newer style, whose HDF5 files don't list the learning rate.
    _lists_no_rate = False

    @classmethod
    def _from_arguments(cls, config, *more):
        lists_no_rate = config.pop("is_legacy_optimizer", None) is not None
        if lists_no_rate:
            config.pop("jit_compile")
            if not config.get("adaptive_epsilon"):  # otherwise Keras 3 refuses it
                config.pop("adaptive_epsilon", None)
        optimizer = super()._from_arguments(config, *more)
        optimizer._lists_no_rate = lists_no_rate
        return optimizer

    def set_weights(self, weights):
        rate = self._accumulation.port.rate()
        if self._lists_no_rate and rate is not None:
            weights = [weights[0], rate, *weights[1:]]
        self._lists_no_rate = False
        super().set_weights(weights)

    # -- the learning rate -------------------------------------------------------------------------

    @property
    def lr(self):
        """Another name for `learning_rate`, from Keras 2."""
        return self.learning_rate

    @lr.setter
    def lr(self, learning_rate):
        self.learning_rate = learning_rate

    @property
    def decay(self):
        """An update's learning rate is `learning_rate / (1 + decay * completed_updates)`."""
        return self._accumulation.port.decay

    def _get_current_learning_rate(self):
        # Not the property `learning_rate`: weight decay on PyTorch calls this method.
        rate, port = super()._get_current_learning_rate(), self._accumulation.port
        return port.decayed(rate) if port.is_updating else rate

    # -- variables ---------------------------------------------------------------------------------

    def build(self, variables):
        accumulation, port = self._accumulation, self._accumulation.port
        if self.built or not variables:
            # Keras's HDF5 loader builds on an empty list, and then calls `set_weights`: it waits.
            accumulation.state.is_promised = not self.built
            return
        accumulation.state.check_promise()
        # If the attribute was set since, Keras would accumulate the averages of windows.
        self._check_one_accumulation(self.gradient_accumulation_steps)
        with port.build_scope(variables):
            super().build(variables)
            port.variables = self._trainable_variables
            accumulation.open_window()
        with port.eagerly():
            accumulation.state.built()

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
        return super().variables

    # -- a micro-batch -----------------------------------------------------------------------------

    def apply(self, grads, trainable_variables=None):
        accumulation = self._accumulation
        if self.built and accumulation.state.waiting is not None:
            accumulation.state.built()  # raises once more what `build` has raised
        if self._is_stock:
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
            pairs = self._filter_empty_gradients(grads, trainable_variables)
            accumulation.micro_batch(*map(list, pairs))

    @property
    def _is_stock(self):
        return self._accumulation.options.is_stock and not self.decay

    # -- an update, inside of the stock class's `apply` --------------------------------------------

    def update_step(self, gradient, variable, learning_rate):
        selection = self._accumulation.port.selection
        if not self._is_stock:
            self._accumulation.port.check_is_update("update_step")
        with contextlib.nullcontext() if selection is None else selection.of(variable):
            super().update_step(gradient, variable, learning_rate)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        selection = self._accumulation.port.selection
        if selection is not None:
            selection.turn_to({})  # moving averages come next

    def _backend_apply_gradients(self, grads, trainable_variables):
        port, selection = self._accumulation.port, self._accumulation.port.selection
        if selection is not None and selection.own:
            # A subclass can have changed the zero of a variable that had no gradient in the window,
            # and the variable would count in a global norm.
            switches = [selection.own.get(port.index(v), 1) for v in trainable_variables]
            grads = port.where_due(grads, switches)
        super()._backend_apply_gradients(grads, trainable_variables)
        if selection is not None:
            selection.turn_to(selection.own)  # constraints come next

    # -- after a training --------------------------------------------------------------------------

    def finalize_variable_values(self, var_list):
        # After an error in a train step on JAX, the variables have no values.
        if self._iterations._value is not None:
            super().finalize_variable_values(var_list)
