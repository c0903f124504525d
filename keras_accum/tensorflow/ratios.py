"""Numbers that only a graph of TensorFlow knows: do they keep their ratios? Imports no Keras."""

import tensorflow as tf

from keras_accum.tensorflow.values import list_graphs


class Ratios:
    """Compares numbers with those of the first step, in a graph's variables.

    count: how many numbers there are.
    """

    def __init__(self, count):
        with tf.init_scope():  # outside of the graph
            self._first = tf.Variable(tf.zeros([count], tf.int64), trainable=False)
            self._differ = tf.Variable(False, trainable=False)

    def note(self, counted):
        """Compare what is counted in a graph: Terms and Rows. If all are empty, nothing shows."""
        arrays, graphs = [each.values for each in counted], list_graphs()
        for tensor in tf.nest.flatten(arrays, expand_composites=True):
            if not any(getattr(tensor, "graph", None) is graph for graph in graphs):
                return  # it is of a `tf.function` in the model's own code
        numbers = tf.stack([tf.cast(each.measure(), tf.int64) for each in counted])
        first = tf.where(tf.reduce_any(self._first != 0), self._first, numbers)
        differ = tf.reduce_any(numbers * first[0] != first * numbers[0])  # no division by 0
        self._differ.assign(self._differ | differ)
        self._first.assign(first)

    def differ(self):
        """Return True if any step had other ratios than the first one."""
        return bool(self._differ.numpy())


def make_ratios(count):
    """Return a Ratios; None under a strategy, whose replicas would compare their own numbers."""
    return None if tf.distribute.has_strategy() else Ratios(count)
