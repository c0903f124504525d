"""Train steps in slices on Keras 3: what the backends share."""

import contextlib
import functools

import keras

from keras_accum import slices
from keras_accum.keras3.masks import mask_of, masked


class _Sum(keras.losses.Loss):
    """The sum of values, as Keras weights and masks the values of a loss."""

    def __init__(self, dtype):
        super().__init__(reduction="sum", dtype=dtype)

    def call(self, y_true, y_pred):
        return y_pred


class Losses(slices.Losses):
    """The losses of a model on a slice. Keras divides them by the number of replicas."""

    _loss_class = keras.losses.Loss
    _mean_class = keras.metrics.MeanMetricWrapper

    def __init__(self, model, replicas):
        super().__init__(model)
        self._replicas = replicas

    def _couples(self, loss):
        circle = getattr(keras.losses, "circle", None)
        return circle is not None and getattr(loss, "fn", None) is circle

    def _quotient(self, value, divisor):
        return keras.ops.divide_no_nan(value, keras.ops.cast(divisor, value.dtype))

    def _value(self, loss, y_true, y_pred, sample_weight):
        if sample_weight is not None:  # Keras multiplies it by the mask, on PyTorch in place
            sample_weight = keras.ops.copy(sample_weight)
        return loss(y_true, y_pred, sample_weight)

    def _divisor(self, loss, y_pred, values, sample_weight):
        masks = [mask for mask in (mask_of(y_pred), mask_of(values)) if mask is not None]
        mask = functools.reduce(keras.ops.logical_and, masks) if masks else None
        if loss.reduction == "mean_with_sample_weight" and sample_weight is not None:
            weights = keras.ops.cast(keras.ops.copy(sample_weight), loss.dtype)
            weights = weights if mask is None else masked(weights, mask)
            return _Sum(loss.dtype)(weights, weights) * self._replicas()
        if mask is None or loss.reduction == "sum":
            return None
        return keras.ops.sum(keras.ops.cast(mask, loss.dtype)) * self._replicas()

    def _compute(self, x, y, sample_weight):
        y_pred = call(self._model, x, training=False)
        if self._model._compile_loss is not None:
            self._model._compile_loss(y, y_pred, sample_weight)

    @contextlib.contextmanager
    def _in_place_of_losses(self, function):
        container = self._model._compile_loss
        if container is None:
            yield
            return
        own = container._flat_losses
        container._flat_losses = [
            item._replace(loss=functools.partial(function, i, item.loss))
            for i, item in enumerate(own)
        ]
        try:
            yield
        finally:
            container._flat_losses = own

    def _metrics(self):
        return getattr(self._model._compile_metrics, "metrics", [])

    def _trackers(self):
        return getattr(self._model._compile_loss, "metrics", [])

    def _weighted(self, update_state, rows, of):
        # Keras weights a batch by its samples if it knows how many they are.
        weight = rows if isinstance(of, int) else rows / of
        return lambda value, sample_weight=None: update_state(value, sample_weight=weight)


def call(model, x, training):
    """Call the model as Keras's train step does."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


class Step(slices.StepInSlices):
    """A train step in slices on Keras 3."""

    _batch_normalizations = keras.layers.BatchNormalization
    unpack = staticmethod(keras.utils.unpack_x_y_sample_weight)

    def __init__(self, model, size, loss):
        super().__init__(model, size, loss)
        self.losses = Losses(model, self.replicas)
        self.outputs = slices.Outputs(keras.tree, mask_of, masked)

    def replicas(self):
        """Return the number of replicas by which Keras divides a loss."""
        return 1

    def call(self, x):
        return call(self.model, x, training=True)

    def loss_of_slice(self, x, y, y_pred, sample_weight):
        return self.model.compute_loss(x, y, y_pred, sample_weight, training=True)

    def loss_of_outputs(self, y, y_pred, sample_weight, penalties):
        """Return the loss of the whole batch, with the given losses that layers have added."""
        return self.model._compile_loss(y, y_pred, sample_weight) + penalties

    def penalties(self, share):
        """Return a slice's share of the losses that layers add."""
        losses = map(self.model._aggregate_additional_loss, self.model.losses)
        total = sum(losses, keras.ops.zeros(()))
        return self.part(total, share)

    @staticmethod
    def part(loss, share):
        """Return a slice's share of a loss."""
        return keras.ops.convert_to_tensor(share, loss.dtype) * loss

    def scaled(self, loss):
        return self.model.optimizer.scale_loss(loss)

    def track(self, loss, rows, x, y, y_pred, sample_weight):
        """Update the metrics with a slice, or with a batch."""
        self.model._loss_tracker.update_state(loss * self.replicas(), sample_weight=rows)
        self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    @staticmethod
    def product(arrays, gradients):
        """Return a scalar whose gradient with respect to the arrays is `gradients`."""
        pairs = [(a, g) for a, g in zip(arrays, gradients) if g is not None]
        return sum(keras.ops.sum(_wide(a) * _wide(g)) for a, g in pairs)

    @staticmethod
    def zero(dtype=None):
        return keras.ops.zeros((), keras.backend.standardize_dtype(dtype))

    def state(self):
        """Return the variables that a train step changes besides weights and optimizer."""
        layers = self.model._flatten_layers()
        frozen = {id(v) for layer in layers for v in layer._trainable_variables}
        others = [v for v in self.model.non_trainable_variables if id(v) not in frozen]
        return [*others, *self.model.metrics_variables]

    @staticmethod
    def copy(variable):
        return keras.ops.copy(variable.value)

    def unchanged(self):
        """A scope in which variables keep their values, whatever is computed."""
        return keras.StatelessScope()


def _wide(array):
    dtype = keras.backend.standardize_dtype(array.dtype)
    return keras.ops.cast(array, "float32") if dtype in ("float16", "bfloat16") else array
