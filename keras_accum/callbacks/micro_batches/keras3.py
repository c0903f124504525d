"""What a train step in slices must know of a model of Keras 3."""

import contextlib
import functools
import importlib

import keras
from keras import ops

from keras_accum.callbacks.micro_batches import step
from keras_accum.callbacks.train_function import attribute
from keras_accum.keras3.masks import mask_of, masked

_backend = importlib.import_module(f"keras_accum.callbacks.micro_batches.{keras.backend.backend()}")


class OfKeras3(step.Step):
    """What is the same on all backends."""

    keras, ops, tree, floatx = keras, ops, keras.tree, staticmethod(keras.config.floatx)
    mask_of, masked = staticmethod(mask_of), staticmethod(masked)
    own_weights, coupling = "_trainable_variables", (keras.losses.circle,)

    def call(self, x, training):
        model = self.model
        return model(x, training=training) if model._call_has_training_arg else model(x)

    def infer(self, data):
        """Compute the losses in inference mode."""
        x, y, sample_weight = self.unpack(data)
        y_pred = self.call(x, training=False)
        if self.model._compile_loss is not None:
            self.model._compile_loss(y, y_pred, sample_weight)

    def loss_of_outputs(self, y, y_pred, sample_weight, penalties):
        """Return the loss of the whole batch, with the given losses that layers have added."""
        return self.model._compile_loss(y, y_pred, sample_weight) + penalties

    def penalties(self, share):
        """Return a slice's share of the losses that layers add."""
        losses = map(self.model._aggregate_additional_loss, self.model.losses)
        return self.part(sum(losses, ops.zeros(())), share)

    @contextlib.contextmanager
    def in_place_of_losses(self, function):
        """A scope in which `function(index, loss, ...)` is called in place of each loss."""
        container = self.model._compile_loss
        own = [] if container is None else container._flat_losses
        found = [
            item._replace(loss=functools.partial(function, i, item.loss))
            for i, item in enumerate(own)
        ]
        with attribute(container, "_flat_losses", found) if own else contextlib.nullcontext():
            yield

    def divides_by_replicas(self):
        """Return by what Keras divides each mean, besides its elements: the replicas."""
        return self.replicas()

    def scaled(self, loss):
        return self.optimizer.scale_loss(loss)

    # -- metrics -----------------------------------------------------------------------------------

    def metrics(self):
        """Return the metrics that are given to `compile`."""
        return [] if self.model._compile_metrics is None else self.model._compile_metrics.metrics

    def trackers(self):
        """Return the metrics of the losses."""
        return [] if self.model._compile_loss is None else self.model._compile_loss.metrics

    @staticmethod
    def tracked(update_state, rows, of):
        """Return `update_state` of a tracker, weighted by the samples of the slice."""
        # Keras weights a batch by its samples if it knows how many they are.
        weight = rows if isinstance(of, int) else rows / of
        return lambda value, sample_weight=None: update_state(value, sample_weight=weight)

    @contextlib.contextmanager
    def without_metrics(self):
        """A scope in which a train step updates no metrics."""
        tracker, nothing = self.model._loss_tracker, lambda *arguments, **more: {}
        with attribute(tracker, "update_state", nothing):
            with attribute(self.model, "compute_metrics", nothing):
                yield

    def track(self, loss, rows, x, y, y_pred, sample_weight):
        """Update the metrics with a batch."""
        self.model._loss_tracker.update_state(loss * self.replicas(), sample_weight=rows)
        self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    # -- variables ---------------------------------------------------------------------------------

    def apply(self, gradients):
        self.optimizer.apply(gradients, self.model.trainable_weights)

    def unchanged(self):
        """A scope in which variables keep their values, whatever is computed."""
        return keras.StatelessScope()


class Step(_backend.Loops, OfKeras3):
    """A train step in slices on Keras 3, on the backend that is in use."""
