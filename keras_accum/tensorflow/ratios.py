"""Numbers that only a graph of TensorFlow knows: do they keep their ratios? Imports no Keras."""

import tensorflow as tf

from keras_accum.tensorflow.values import list_graphs

MOST = 16  # numbers that are compared
KINDS = 3  # how many numbers there are may differ from trace to trace so often


class Ratios:
    """Compares numbers with those of the first step, in variables."""

    def __init__(self):
        self._first = tf.Variable(tf.zeros([MOST], tf.int64), trainable=False)
        self._differ = tf.Variable(False, trainable=False)

    def note(self, counted):
        """Compare what is counted in a graph: Terms and Rows. If all are empty, nothing shows."""
        # The replicas of a strategy would compare their own numbers.
        if len(counted) > MOST or tf.distribute.has_strategy():
            return
        arrays, graphs = [each.values for each in counted], list_graphs()
        for tensor in tf.nest.flatten(arrays, expand_composites=True):
            if not any(getattr(tensor, "graph", None) is graph for graph in graphs):
                return  # it is of a `tf.function` in the model's own code
        numbers = tf.stack([tf.cast(each.measure(), tf.int64) for each in counted])
        numbers = tf.pad(numbers, [[0, MOST - len(counted)]])
        first = tf.where(tf.reduce_any(self._first != 0), self._first, numbers)
        differ = tf.reduce_any(numbers * first[0] != first * numbers[0])  # no division by 0
        self._differ.assign(self._differ | differ)
        self._first.assign(first)

    def differ(self):
        """Return True if any step had other ratios than the first one."""
        return bool(self._differ.numpy())


def make_ratios():
    """Return Ratios for a model's graphs, which can't make variables when they are traced again."""
    is_outside = tf.executing_eagerly() and not tf.distribute.has_strategy()
    return [Ratios() for _ in range(KINDS)] if is_outside else []
