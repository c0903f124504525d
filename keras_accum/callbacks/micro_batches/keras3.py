"""What a train step in slices must know of a model of Keras 3."""

import contextlib
import functools
import importlib

import keras
from keras import ops
from keras.src.backend import get_keras_mask, set_keras_mask

from keras_accum.callbacks.micro_batches import step
from keras_accum.callbacks.train_function import attribute

_backend = importlib.import_module(f"keras_accum.callbacks.micro_batches.{keras.backend.backend()}")


class OfKeras3(step.Step):
    """What is the same on all backends."""

    keras, ops, tree = keras, ops, keras.tree
    mask_of, set_mask = staticmethod(get_keras_mask), staticmethod(set_keras_mask)
    own_weights, coupling = "_trainable_variables", (keras.losses.circle,)

    def call(self, x):
        return self.model(x, training=True) if self.model._call_has_training_arg else self.model(x)

    def loss_of_outputs(self, y, y_pred, sample_weight, penalties):
        """Return the loss of the whole batch, with the given losses that layers have added."""
        return self.model._compile_loss(y, y_pred, sample_weight) + penalties

    def penalties(self, share):
        """Return a slice's share of the losses that layers add."""
        losses = map(self.model._aggregate_additional_loss, self.model.losses)
        return self.part(sum(losses, ops.zeros(())), share)

    @contextlib.contextmanager
    def in_place_of_losses(self, function):
        """A scope in which `function(loss, ...)` is called in place of each loss."""
        container = self.model._compile_loss
        if container is None:
            yield
            return
        found = [
            item._replace(loss=functools.partial(function, item.loss))
            for item in container._flat_losses
        ]
        with attribute(container, "_flat_losses", found):
            yield

    def scaled(self, loss):
        return self.optimizer.scale_loss(loss)

    # -- metrics -----------------------------------------------------------------------------------

    def metrics(self):
        """Return the metrics that are given to `compile`."""
        return [] if self.model._compile_metrics is None else self.model._compile_metrics.metrics

    def trackers(self):
        """Return the metrics of the losses."""
        return [] if self.model._compile_loss is None else self.model._compile_loss.metrics

    def counts_samples(self, of):
        """Return whether Keras weights the losses of a batch by its samples."""
        return isinstance(of, int)

    def track(self, loss, rows, x, y, y_pred, sample_weight):
        """Update the metrics with a slice, or with a batch."""
        self.model._loss_tracker.update_state(loss * self.replicas(), sample_weight=rows)
        self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def update(self, gradients):
        self.optimizer.apply(gradients, self.model.trainable_weights)


class Step(_backend.Loops, OfKeras3):
    """A train step in slices on Keras 3, on the backend that is in use."""
