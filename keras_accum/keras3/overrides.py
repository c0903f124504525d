"""The methods that Keras 3 calls on an optimizer, in a train step and around it."""

import contextlib
import inspect

import keras
from keras import ops

from keras_accum import host, schedule
from keras_accum.convert import Convertible
from keras_accum.engine.models import note
from keras_accum.engine.optimizers import accumulating_in, forgetting, inner, is_ours
from keras_accum.engine.parts import sum_dtype
from keras_accum.engine.state import BY_LOADING, StateError
from keras_accum.host import warn
from keras_accum.keras3.stock import Keras3Stock
from keras_accum.mistakes import check_known
from keras_accum.options import unchangeable

# The members of Keras's own class overridden here or called by a private name.
OF_KERAS = (
    *("apply", "stateless_apply", "build", "variables", "add_variable_from_reference"),
    *("get_config", "update_step", "finalize_variable_values", "learning_rate"),
    *("_get_current_learning_rate", "_update_model_variables_moving_average"),
)
host.check_members(keras, keras.optimizers.Optimizer, OF_KERAS)


class Overrides(Convertible):
    """Keras 3 on any backend; `jax`, `torch` and `tensorflow` have a subclass each."""

    _keras_name, _stock_optimizers = "keras3", Keras3Stock()
    _in_custom_objects = staticmethod(keras.saving.get_registered_object)

    def _stock_arguments(self, arguments):
        store = self._accumulation.store
        if "name" in inspect.signature(self._stock_class.__init__).parameters:
            arguments.setdefault("name", None)  # Keras derives it from the class
        store.decay = arguments.pop("decay", 0.0)
        if not (schedule.is_number(store.decay) and store.decay >= 0):
            raise ValueError(f"`decay` must be a number >= 0. Received: decay={store.decay!r}")
        steps = arguments.get("gradient_accumulation_steps")
        self._check_one_accumulation(steps)
        if steps:
            name = type(self).__name__
            warn(
                f"gradient_accumulation_steps={steps} is Keras's own accumulation, where schedules "
                "and `completed_updates` count micro-batches. For this package's, write "
                f"{name}(accum_iters={steps})."
            )
        return arguments

    def _check_one_accumulation(self, steps):
        if steps and not self._is_stock:
            accum_iters = self._accumulation.options.accum_iters
            raise ValueError(
                "`gradient_accumulation_steps` is Keras's own accumulation and can't be combined "
                "with this package's arguments: give `accum_iters` instead. "
                f"Received: gradient_accumulation_steps={steps}, accum_iters={accum_iters}"
            )

    def get_config(self):
        return {**super().get_config(), "decay": self.decay}

    @classmethod
    def _from_arguments(cls, config, *more):
        # A config of tf_keras's newer style. Keras 3.16 takes the first two out, and leaves this.
        if config.pop("is_legacy_optimizer", None) is not None:
            config.pop("jit_compile")
        is_taken = "adaptive_epsilon" in inspect.signature(cls._stock_class.__init__).parameters
        if config.get("adaptive_epsilon") is False and not is_taken:  # otherwise Keras 3 refuses it
            config.pop("adaptive_epsilon")
        return super()._from_arguments(config, *more)

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
        """The constructor argument: the rate is divided by 1 + decay * completed_updates."""
        return self._accumulation.store.decay

    @decay.setter
    def decay(self, decay):
        raise unchangeable(self, "decay", decay, "after construction")

    # -- variables ---------------------------------------------------------------------------------

    def build(self, variables):
        accumulation, store = self._accumulation, self._accumulation.store
        if self.built or not variables:
            # Keras's HDF5 loader builds without variables, and then calls `set_weights`.
            accumulation.state.expect(None if self.built else BY_LOADING)
            return
        accumulation.state.check_loader()
        host.check_members(keras, self._iterations, ["_value"])  # read past Keras's `value`
        # Somebody may have set the attribute since.
        self._check_one_accumulation(self.gradient_accumulation_steps)
        if not self._is_stock:
            _refuse_float8(variables)
        try:
            with store.build_scope(variables) as has_values, accumulation.building(variables):
                self._exclude_by_place(variables)
                super().build(variables)
        except BaseException:
            self.built = False
            raise
        with store.eagerly():
            if has_values:
                store.start_training()
            accumulation.state.write_pending()

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        variable = super().add_variable_from_reference(
            reference_variable, name=name, initializer=initializer
        )
        self._accumulation.store.note_slot(variable, name, reference_variable)
        return variable

    @property
    def variables(self):
        accumulation = self._accumulation
        if not self.built and accumulation.state.is_waiting:
            accumulation.state.check_is_ready("variables")
        return super().variables

    # -- a micro-batch -----------------------------------------------------------------------------

    def apply(self, grads, trainable_variables=None):
        accumulation = self._accumulation
        if self.built and accumulation.state.is_waiting:
            accumulation.state.write_pending()  # re-raises build's error
        if self._is_stock:
            return super().apply(grads, trainable_variables)
        grads, store = list(grads), accumulation.store
        if not grads:
            return None
        if trainable_variables is None:
            if not self.built or len(grads) != len(store.variables):
                return super().apply(grads)  # raises the stock optimizer's error
            trainable_variables = store.variables
        variables = list(trainable_variables)
        if len(grads) != len(variables):  # stock on TensorFlow and JAX ignores what is left over
            raise ValueError(
                "`apply` takes one gradient for each variable, None if it is missing. "
                f"Received: {len(grads)} gradients for {len(variables)} variables"
            )
        if not self.built:
            with keras.name_scope(self.name, caller=self):  # as in the stock class, for equal paths
                self.build(variables)
        missing = [v for g, v in zip(grads, variables) if g is None]
        if store.has_all(variables) and not missing:
            variables = store.variables
        else:
            check_known(store, variables)
            pairs = [pair for pair in zip(grads, variables) if pair[0] is not None]
            if not pairs:
                accumulation.pending.forget()  # there is no micro-batch
                return super().apply(grads, variables)  # returns or raises, as stock
            if missing:
                names = ", ".join(map(store.get_name, missing))
                warn(f"Gradients do not exist for {names} in this micro-batch.")
            grads, variables = map(list, zip(*pairs))
        if self.loss_scale_factor is not None:  # sums are unscaled: the factor may change
            grads = [_unscale(gradient, self.loss_scale_factor) for gradient in grads]
        accumulation.micro_batch(grads, variables)
        return None

    @property
    def _is_stock(self):
        return self._accumulation.options.is_stock and not self.decay

    # -- the stock `apply` comes back here ---------------------------------------------------------

    # `Keras3Update.run` calls the stock class's own `apply`. It reads the rate, unscales gradients
    # and moves averages by these members, which then leave out what is done already, or do it
    # behind the switch. They ask `is_updating`: TensorFlow's replicas are inside of `apply` in
    # turns, so one of them can't set an attribute and put it back.

    def _get_current_learning_rate(self):
        # Not the property: weight decay on PyTorch calls this method.
        rate, accumulation = super()._get_current_learning_rate(), self._accumulation
        is_updating = accumulation.update.is_updating
        return accumulation.store.apply_decay(rate) if is_updating else rate

    @property
    def loss_scale_factor(self):
        # None in an update, so Keras doesn't unscale again.
        return None if self._accumulation.update.is_updating else self._loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor):
        self._loss_scale_factor = factor

    @property
    def ema_overwrite_frequency(self):
        # None in an update, so Keras skips its own conditional.
        return None if self._accumulation.update.is_updating else self._ema_overwrite_frequency

    @ema_overwrite_frequency.setter
    def ema_overwrite_frequency(self, frequency):
        self._ema_overwrite_frequency = frequency

    def _update_model_variables_moving_average(self, trainable_variables):
        values, frequency = self._accumulation.values, self._ema_overwrite_frequency
        selection = self._accumulation.update.filter
        with contextlib.nullcontext() if selection is None else selection.following_the_update():
            super()._update_model_variables_moving_average(trainable_variables)
            if selection is not None and frequency:
                is_due = (self._iterations + 1) % frequency == 0
                for weight, average in self._pair_averages():
                    new = ops.where(is_due, values.value(average), values.value(weight))
                    self.assign(weight, new)

    def update_step(self, gradient, variable, learning_rate):
        if not self._is_stock:
            self._accumulation.update.check_is_update("update_step")
        super().update_step(gradient, variable, learning_rate)

    # -- moving averages of the weights, `use_ema` -------------------------------------------------

    def _pair_averages(self):
        """Return weights with their moving averages, in pairs."""
        averages = self._model_variables_moving_average if self.use_ema and self.built else []
        pairs = zip(self._accumulation.store.variables, averages)
        return [(weight, average) for weight, average in pairs if average is not None]

    def finalize_variable_values(self, var_list):
        # On JAX, an error in a train step leaves variables without values. Before the first update
        # the weights stay: they may have been loaded since `build`.
        if self._iterations._value is None or self.use_ema and not self.completed_updates:
            return
        super().finalize_variable_values(var_list)
        for _, average in self._pair_averages():
            # On JAX, a weight and its average share one array now, and can't both donate it.
            average.assign(ops.copy(average))


def _unscale(gradient, factor):
    """Return the gradient of a loss that was multiplied by a factor, in the dtype of its sum."""
    dtype = sum_dtype(keras.backend.standardize_dtype(gradient.dtype))
    return ops.divide(ops.cast(gradient, dtype), factor)


def _refuse_float8(variables):
    """Raise a ValueError for variables whose "gradient" is their next value."""
    scales = [v for v in variables if getattr(v, "overwrite_with_gradient", False)]
    if scales:
        raise ValueError(
            "Layers in float8 have scales that follow each batch, and a window has no sum of "
            "them. Train float8 layers with a stock optimizer, or quantize the model after the "
            f"training. Received: {scales[0].path}, and {len(scales) - 1} more"
        )


def _check_at_once(load_weights):
    """Return a `load_weights` that creates the optimizer's variables, to check its state at once.

    Otherwise the first train step would, which can't know of `skip_mismatch`.
    """

    def load_and_check(model, filepath, skip_mismatch=False, **keywords):
        optimizer = inner(getattr(model, "optimizer", None))
        if not is_ours(optimizer) or optimizer.built:
            return load_weights(model, filepath, skip_mismatch=skip_mismatch, **keywords)
        state, rate = optimizer._accumulation.state, optimizer._accumulation.store.rate()
        before = state.before_build.state
        load_weights(model, filepath, skip_mismatch=skip_mismatch, **keywords)
        if state.before_build.state is before or not model.trainable_variables:
            return None
        try:
            optimizer.build(model.trainable_variables)
        except StateError as error:
            if not (skip_mismatch or state.explain_other_weights(state.before_build.state)):
                raise StateError(
                    f"{error} To load the weights and start a new optimizer, call "
                    "`load_weights(path, skip_mismatch=True)`, or load before you compile."
                ) from None
            state.skip(rate)
            warn(f"Skipping the optimizer's state in {filepath}: {error}")
        if not model.optimizer.built:  # a LossScaleOptimizer
            model.optimizer.build(model.trainable_variables)
        return None

    return load_and_check


def _load_alone(load_own_variables):
    """Return a LossScaleOptimizer's `load_own_variables`, which leaves ours its own state.

    Keras writes every variable of the inner optimizer by its place, also where ours refuses a state
    because other layers are frozen.
    """

    def load(optimizer, store):
        places = [str(place) for place in range(len(optimizer._variables))]
        is_usual = optimizer.built and all(place in store for place in places)
        if not (is_usual and is_ours(optimizer.inner_optimizer)):
            return load_own_variables(optimizer, store)
        for place, variable in zip(places, optimizer._variables):
            variable.assign(store[place])
        return None

    return load


def _note_the_model(set_hook):
    """Replace a method called when a model gets an attribute, such as an optimizer from `compile`.

    `compile` itself is too early: Python looks it up in `model.compile(AdamAccumulate())` before
    it constructs the optimizer that hooks in.
    """

    def note_and_set(model, name, value):
        if isinstance(value, keras.optimizers.Optimizer):
            for optimizer in accumulating_in(value):
                note(optimizer, model)
        return set_hook(model, name, value)

    return note_and_set


host.check_members(keras, keras.Model, ["load_weights", "_setattr_hook"])
PATCHES = [
    (keras.Model, "_setattr_hook", _note_the_model),
    (keras.Model, "load_weights", _check_at_once),
    (keras.optimizers.LossScaleOptimizer, "load_own_variables", _load_alone),
]
for _name in ("apply", "stateless_apply"):
    PATCHES.append((keras.optimizers.LossScaleOptimizer, _name, forgetting))
