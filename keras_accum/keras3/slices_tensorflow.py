"""Train steps in slices on TensorFlow."""

import tensorflow as tf

from keras_accum.keras3 import slices
from keras_accum.tensorflow_slices import Loops


class Step(Loops, slices.Step):
    """A train step in slices on TensorFlow.

    A replica of a strategy takes slices of its own part of the batch, and the optimizer reduces the
    sum of the gradients once.
    """

    def replicas(self):
        return tf.distribute.get_strategy().num_replicas_in_sync

    def build(self, data):
        model = self.model
        parts = [*model._flatten_layers(), model._compile_loss, model._compile_metrics]
        if not all(part is None or part.built for part in [*parts, model.optimizer]):
            with tf.init_scope():
                model._symbolic_build(data_batch=data)

    def apply(self, gradients, variables):
        self.model.optimizer.apply_gradients(zip(gradients, variables))
