"""Train steps in slices on tf_keras."""

import contextlib
import functools
import random

import tensorflow as tf

from keras_accum import kernels, slices
from keras_accum.halving import attribute
from keras_accum.tensorflow_slices import Loops
from keras_accum.tf_keras.library import keras


def _mask_of(output):
    return getattr(output, "_keras_mask", None)


def _masked(output, mask):
    output = tf.identity(output)
    output._keras_mask = mask
    return output


class Losses(slices.Losses):
    """The losses of a model on a slice. Keras's container divides them by the replicas."""

    _loss_class = keras.losses.Loss
    _mean_class = keras.metrics.MeanMetricWrapper

    def _quotient(self, value, divisor):
        return value / tf.cast(divisor, value.dtype)

    def _value(self, loss, y_true, y_pred, sample_weight):
        return loss(y_true, y_pred, sample_weight=sample_weight)

    def _divisor(self, loss, y_pred, values, sample_weight):
        masks = [mask for mask in (_mask_of(y_pred), _mask_of(values)) if mask is not None]
        if not masks or loss.reduction == "sum":
            return None
        mask = functools.reduce(tf.logical_and, masks)
        elements = tf.cast(tf.size(values) // tf.size(mask), values.dtype)
        return elements * tf.reduce_sum(tf.cast(mask, values.dtype))

    def _compute(self, x, y, sample_weight):
        self._model.compiled_loss(y, self._model(x, training=False), sample_weight)

    @contextlib.contextmanager
    def _in_place_of_losses(self, function):
        def stand_in(i, loss):
            called = functools.partial(function, i, loss)
            called.reduction = loss.reduction  # which the container reads
            return called

        own = self._model.compiled_loss._losses
        found = [loss if loss is None else stand_in(i, loss) for i, loss in enumerate(own)]
        with attribute(self._model.compiled_loss, "_losses", found):
            yield

    def _metrics(self):
        return self._model.compiled_metrics.metrics

    def _trackers(self):
        return [self._model.compiled_loss._total_loss_mean]

    def _weighted(self, update_state, rows, of):
        # Keras weights a batch by its samples if a loss of `compile` has counted them.
        def weighted(value, sample_weight=None):
            weight = rows / of if sample_weight is None else sample_weight
            return update_state(value, sample_weight=weight)

        return weighted


class Step(Loops, slices.StepInSlices):
    """A train step in slices on tf_keras, with an optimizer of either style.

    A replica of a strategy takes slices of its own part of the batch, and the optimizer reduces the
    sum of the gradients once.
    """

    _batch_normalizations = (
        keras.layers.BatchNormalization,
        keras.layers.experimental.SyncBatchNormalization,
    )
    unpack = staticmethod(keras.utils.unpack_x_y_sample_weight)

    def __init__(self, model, size, loss):
        super().__init__(model, size, loss)
        self.losses, self.outputs = Losses(model), slices.Outputs(tf.nest, _mask_of, _masked)
        self._own_generators = {}

    def build(self, data):
        def forward(data):
            x, y, sample_weight = self.unpack(data)
            y_pred = self.call(x)
            self.loss_of_slice(x, y, y_pred, sample_weight)
            self.track(None, None, x, y, y_pred, sample_weight)

        model = self.model
        if not all(p.built for p in (model, model.compiled_loss, model.compiled_metrics)):
            self.traced(forward, data)

    def call(self, x):
        with contextlib.ExitStack() as stack:
            for random_numbers, own in self._generators():
                stack.enter_context(attribute(random_numbers, "_rng_type", "stateful"))
                stack.enter_context(attribute(random_numbers, "_generator", own))
            return self.model(x, training=True)

    def loss_of_slice(self, x, y, y_pred, sample_weight):
        loss = self.model.compute_loss(x, y, y_pred, sample_weight)
        self.model._validate_target_and_loss(y, loss)
        return loss

    def loss_of_outputs(self, y, y_pred, sample_weight, penalties):
        """Return the loss of the whole batch, with the given losses that layers have added."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        added = [penalties * replicas]  # Keras divides by the replicas
        loss = self.model.compiled_loss(y, y_pred, sample_weight, regularization_losses=added)
        self.model._validate_target_and_loss(y, loss)
        return loss

    def penalties(self, share):
        """Return a slice's share of the losses that layers add."""
        losses = (tf.cast(loss, keras.backend.floatx()) for loss in self.model.losses)
        total = sum(losses, self.zero())
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return self.part(total, share / replicas)

    @staticmethod
    def part(loss, share):
        """Return a slice's share of a loss."""
        return kernels.as_type(share, loss.dtype) * loss

    def scaled(self, loss):
        return self.model.optimizer.get_scaled_loss(loss) if self._scales() else loss

    def apply(self, gradients, variables):
        optimizer = self.model.optimizer
        if self._scales():
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables))

    def _scales(self):
        return isinstance(self.model.optimizer, keras.mixed_precision.LossScaleOptimizer)

    def track(self, loss, rows, x, y, y_pred, sample_weight):
        """Update the metrics with a slice, or with a batch. Keras has updated those of losses.

        `compute_metrics` reads them, too, which a loop under a strategy can't.
        """
        self.model.compiled_metrics.update_state(y, y_pred, sample_weight)

    @staticmethod
    def product(arrays, gradients):
        """Return a scalar whose gradient with respect to the arrays is `gradients`."""
        floatx = keras.backend.floatx()
        return sum(
            tf.reduce_sum(tf.cast(a, floatx) * tf.cast(g, floatx))
            for a, g in zip(arrays, gradients)
        )

    @staticmethod
    def zero(dtype=None):
        return tf.zeros((), dtype or keras.backend.floatx())

    def state(self):
        """Return the variables that a train step changes besides weights and optimizer."""
        model = self.model
        frozen = {id(v) for layer in model._flatten_layers() for v in layer._trainable_weights}
        others = [v for v in model.non_trainable_variables if id(v) not in frozen]
        metrics = [v for metric in model.metrics for v in metric.variables]
        return [*others, *metrics, *(own.state for _, own in self._generators())]

    copy = staticmethod(tf.identity)

    def of_batches(self, make):
        function = make()
        traced = getattr(function, "python_function", function)

        def of_batch(batch):
            return traced(iter([batch]))

        eagerly = self.model.run_eagerly
        return of_batch if eagerly else tf.function(of_batch, reduce_retracing=True)

    def _generators(self):
        """Return pairs: a layer's random numbers, and a generator that can draw them twice.

        By default, layers of this Keras draw by operations whose state can't be read.
        """
        if self.loss != "batch":
            return []
        found = [vars(layer).get("_random_generator") for layer in self.model._flatten_layers()]
        found = [random_numbers for random_numbers in found if random_numbers is not None]
        if found and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise ValueError(
                "MicroBatches(loss='batch') can't be used with layers that draw random numbers, "
                "such as dropout, under a strategy with several replicas on tf_keras: both passes "
                "of a slice need the same draws."
            )
        return [(random_numbers, self._generator_of(random_numbers)) for random_numbers in found]

    def _generator_of(self, random_numbers):
        random_numbers._maybe_init()
        own = getattr(random_numbers, "_generator", None) or self._own_generators.get(
            id(random_numbers)
        )
        if own is None:
            seed = random_numbers._seed
            with tf.init_scope():
                own = tf.random.Generator.from_seed(
                    random.randint(1, 10**9) if seed is None else seed
                )
            self._own_generators[id(random_numbers)] = own
        return own
