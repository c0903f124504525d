"""What a train step in slices must know of a model of tf_keras."""

import functools
import types

import tensorflow as tf

from keras_accum.callbacks.base import definer
from keras_accum.callbacks.micro_batches import step
from keras_accum.callbacks.micro_batches.tensorflow import Loops
from keras_accum.callbacks.train_function import attribute
from keras_accum.tf_keras.library import keras

_OLD = "MicroBatches needs TensorFlow 2.9 or newer, whose models have `compute_loss`."
_DRAWS = (
    "MicroBatches(loss='batch') can't be used with layers that draw random numbers on tf_keras: "
    "they would draw anew in the second pass of a slice. Use Keras 3. Received: layer {!r}"
)


def as_type(value, dtype):
    """Return a value as a tensor. `tf.cast` makes a Python number a float32 first."""
    return tf.constant(value, dtype) if isinstance(value, float) else tf.cast(value, dtype)


# TensorFlow's operations by their names in `keras.ops` of Keras 3.
OPS = types.SimpleNamespace(
    cast=as_type,
    convert_to_tensor=as_type,
    copy=tf.identity,
    expand_dims=tf.expand_dims,
    shape=tf.shape,
    sum=tf.reduce_sum,
    zeros=lambda shape, dtype=None: tf.zeros(shape, dtype or keras.backend.floatx()),
)


def mask_of(output):
    return getattr(output, "_keras_mask", None)  # of no version does each output have one


class Step(Loops, step.Step):
    """A train step in slices on tf_keras."""

    keras, ops, tree = keras, OPS, tf.nest
    mask_of, own_weights = staticmethod(mask_of), "_trainable_weights"

    # The methods by which Keras's train step computes gradients, and a step in slices doesn't.
    of_optimizer = "minimize", "compute_gradients", "_compute_gradients", "_get_gradients"

    @staticmethod
    def set_mask(output, mask):
        output._keras_mask = mask

    def make_variables(self, data):
        def forward(data):
            x, y, sample_weight = self.unpack(data)
            y_pred = self.call(x)
            self.model.compute_loss(x, y, y_pred, sample_weight)
            self.track(None, None, x, y, y_pred, sample_weight)

        model = self.model
        if not all(p.built for p in (model, model.compiled_loss, model.compiled_metrics)):
            self.traced(forward, data)

    def call(self, x):
        return self.model(x, training=True)

    def loss_of_outputs(self, y, y_pred, sample_weight, penalties):
        """Return the loss of the whole batch, with the given losses that layers have added."""
        added = [penalties * self.replicas()]  # Keras divides by the replicas
        return self.model.compiled_loss(y, y_pred, sample_weight, regularization_losses=added)

    def penalties(self, share):
        """Return a slice's share of the losses that layers add."""
        losses = (tf.cast(loss, keras.backend.floatx()) for loss in self.model.losses)
        return self.part(sum(losses, OPS.zeros(())), share / self.replicas())

    def in_place_of_losses(self, function):
        """A scope in which `function(loss, ...)` is called in place of each loss."""

        def stand_in(loss):
            called = functools.partial(function, loss)
            called.reduction = loss.reduction  # which the container reads
            return called

        container = self.model.compiled_loss
        found = [loss if loss is None else stand_in(loss) for loss in container._losses]
        return attribute(container, "_losses", found)

    def scaled(self, loss):
        return self.optimizer.get_scaled_loss(loss) if self._scales() else loss

    def _scales(self):
        return isinstance(self.optimizer, keras.mixed_precision.LossScaleOptimizer)

    # -- metrics -----------------------------------------------------------------------------------

    def metrics(self):
        """Return the metrics that are given to `compile`."""
        return self.model.compiled_metrics.metrics

    def trackers(self):
        """Return the metrics of the losses."""
        return [self.model.compiled_loss._total_loss_mean]

    def counts_samples(self, of):
        """Return whether Keras weights the loss of a batch by its samples."""
        return bool(self.model.loss)

    def track(self, loss, rows, x, y, y_pred, sample_weight):
        """Update the metrics with a slice, or with a batch. Keras has updated those of losses."""
        self.model.compiled_metrics.update_state(y, y_pred, sample_weight)

    # -- variables ---------------------------------------------------------------------------------

    def update(self, gradients):
        if self._scales():
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_weights))

    def iterator_of(self, batch):
        return iter(tf.data.Dataset.from_tensors(batch))

    def check(self):
        super().check()
        if definer(type(self.model), "compute_loss") is None:
            raise ValueError(_OLD)
        names = "rate", "dropout", "recurrent_dropout"  # of layers that draw nothing if these are 0
        for layer in self.model._flatten_layers() if self.loss == "batch" else ():
            rates = [vars(layer)[name] for name in names if name in vars(layer)]
            if vars(layer).get("_random_generator") is not None and (any(rates) or not rates):
                raise ValueError(_DRAWS.format(layer.name))
