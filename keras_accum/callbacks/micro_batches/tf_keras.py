"""What a train step in slices must know of a model of tf_keras."""

import contextlib
import functools
import types

import tensorflow as tf

from keras_accum.callbacks.base import definer
from keras_accum.callbacks.micro_batches import step
from keras_accum.callbacks.micro_batches.tensorflow import Loops
from keras_accum.callbacks.train_function import attribute
from keras_accum.tf_keras.library import keras

_OLD = "MicroBatches needs TensorFlow 2.9 or newer, whose models have `compute_loss`."
_SAME_DRAWS = (
    "MicroBatches(loss='batch') needs layers that draw the same random numbers in both passes of a "
    "slice, and on tf_keras most draw by operations without a state. Call "
    "keras.backend.experimental.enable_tf_random_generator() before the model is made, and use one "
    "replica. Received: layer {!r}"
)


def as_type(value, dtype):
    """Return a value as a tensor. `tf.cast` makes a Python number a float32 first."""
    return tf.constant(value, dtype) if isinstance(value, float) else tf.cast(value, dtype)


# TensorFlow's operations by their names in `keras.ops` of Keras 3.
OPS = types.SimpleNamespace(
    cast=as_type,
    convert_to_tensor=as_type,
    copy=tf.identity,
    divide_no_nan=tf.math.divide_no_nan,
    expand_dims=tf.expand_dims,
    logical_and=tf.logical_and,
    shape=tf.shape,
    size=tf.size,
    sum=tf.reduce_sum,
    zeros=lambda shape, dtype=None: tf.zeros(shape, dtype or keras.backend.floatx()),
)


def mask_of(output):
    return getattr(output, "_keras_mask", None)  # of no version does each output have one


class Step(Loops, step.Step):
    """A train step in slices on tf_keras."""

    keras, ops, tree, floatx = keras, OPS, tf.nest, staticmethod(keras.backend.floatx)
    mask_of, own_weights = staticmethod(mask_of), "_trainable_weights"

    # The methods by which Keras's train step computes gradients, and a step in slices doesn't.
    of_optimizer = "minimize", "compute_gradients", "_compute_gradients", "_get_gradients"

    _generators = ()  # those of layers, of which both passes need the same random numbers

    @staticmethod
    def masked(output, mask):
        output = tf.identity(output)
        output._keras_mask = mask
        return output

    def make_variables(self, data):
        def forward(data):
            x, y, sample_weight = self.unpack(data)
            y_pred = self.call(x, training=True)
            self.model.compute_loss(x, y, y_pred, sample_weight)
            self.track(None, None, x, y, y_pred, sample_weight)

        model = self.model
        if not all(p.built for p in (model, model.compiled_loss, model.compiled_metrics)):
            self.traced(forward, data)

    def call(self, x, training):
        return self.model(x, training=training)

    def run_own(self, data):
        # Keras's own `compute_metrics` reads metrics, too, which a loop under a strategy can't.
        update = functools.partial(self.track, None, None)
        with attribute(self.model, "compute_metrics", update):
            super().run_own(data)

    def infer(self, data):
        """Compute the losses in inference mode."""
        x, y, sample_weight = self.unpack(data)
        self.model.compiled_loss(y, self.model(x, training=False), sample_weight)

    def loss_of_outputs(self, y, y_pred, sample_weight, penalties):
        """Return the loss of the whole batch, with the given losses that layers have added."""
        added = [penalties * self.replicas()]  # Keras divides by the replicas
        return self.model.compiled_loss(y, y_pred, sample_weight, regularization_losses=added)

    def penalties(self, share):
        """Return a slice's share of the losses that layers add."""
        losses = (tf.cast(loss, keras.backend.floatx()) for loss in self.model.losses)
        return self.part(sum(losses, OPS.zeros(())), share / self.replicas())

    @contextlib.contextmanager
    def in_place_of_losses(self, function):
        """A scope in which `function(index, loss, ...)` is called in place of each loss."""

        def stand_in(i, loss):
            called = functools.partial(function, i, loss)
            called.reduction = loss.reduction  # which the container reads
            return called

        own = self.model.compiled_loss._losses
        found = [loss if loss is None else stand_in(i, loss) for i, loss in enumerate(own)]
        with attribute(self.model.compiled_loss, "_losses", found):
            yield

    def divides_by_replicas(self):
        return 1  # the container of the losses does, afterwards

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

    @staticmethod
    def tracked(update_state, rows, of):
        """Return `update_state` of a tracker, weighted by the samples of the slice."""

        # Keras weights a batch by its samples if a loss of `compile` has counted them.
        def update(value, sample_weight=None):
            share = as_type(rows / of, keras.backend.floatx())
            weight = share if sample_weight is None else sample_weight
            return update_state(value, sample_weight=weight)

        return update

    def without_metrics(self):
        """A scope in which a train step updates no metrics."""
        return attribute(self, "track", lambda *arguments: None)

    def track(self, loss, rows, x, y, y_pred, sample_weight):
        """Update the metrics with a slice, or with a batch. Keras has updated those of losses."""
        self.model.compiled_metrics.update_state(y, y_pred, sample_weight)

    # -- variables ---------------------------------------------------------------------------------

    def apply(self, gradients):
        if self._scales():
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_weights))

    def state(self):
        return [*super().state(), *(one.state for one in self._generators)]

    def iterator_of(self, batch):
        return iter(tf.data.Dataset.from_tensors(batch))

    def check(self):
        super().check()
        if definer(type(self.model), "compute_loss") is None:
            raise ValueError(_OLD)
        self._generators = []
        names = "rate", "dropout", "recurrent_dropout"  # of layers that draw nothing if these are 0
        for layer in self.model._flatten_layers() if self.loss == "batch" else ():
            draws = vars(layer).get("_random_generator")
            rates = [vars(layer)[name] for name in names if name in vars(layer)]
            if draws is not None and (any(rates) or not rates):
                draws._maybe_init()
                if vars(draws).get("_generator") is None or self.replicas() > 1:
                    raise ValueError(_SAME_DRAWS.format(layer.name))
                self._generators.append(draws._generator)
