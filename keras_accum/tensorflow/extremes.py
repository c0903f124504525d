"""Sizes that differ from step to step in one graph, on TensorFlow."""

import numpy as np
import tensorflow as tf

from keras_accum.tensorflow.values import as_written


class Extremes:
    """The least and the greatest sizes of a tensor in all runs of a graph.

    A size is a pair: the values per row, and all values.
    """

    def __init__(self):
        self._variable = tf.Variable(self._none(), trainable=False)  # not within a graph

    def _none(self):
        return np.array([[np.inf, np.inf], [-np.inf, -np.inf]])

    def reset(self):
        self._variable.assign(self._none())

    @as_written
    def add(self, values):
        """Note a tensor's size, also in a graph. A strategy's replicas note nothing."""
        if tf.distribute.has_strategy():
            return  # another device than the variable's may compute this
        is_ragged = isinstance(values, tf.RaggedTensor)
        rows = values.nrows() if is_ragged else tf.shape(values, tf.int64)[0]
        total = tf.size(values.flat_values if is_ragged else values, tf.int64)
        rows, total = tf.cast(rows, tf.float64), tf.cast(total, tf.float64)
        size = tf.stack([total / rows, total])
        least, greatest = tf.unstack(self._variable.read_value())
        extremes = [tf.minimum(least, size), tf.maximum(greatest, size)]
        self._variable.assign(tf.stack(extremes))

    def read(self):
        """Return the sizes as a set of tuples, empty without a run."""
        return {tuple(size) for size in self._variable.numpy().tolist() if np.isfinite(size).all()}
