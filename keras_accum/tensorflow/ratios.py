"""Numbers that only a graph of TensorFlow knows: do they keep their ratios? Imports no Keras."""

import tensorflow as tf


class Ratios:
    """Compares numbers with those of the first step, in a graph's variables.

    count: how many numbers there are.
    """

    def __init__(self, count):
        with tf.init_scope():  # outside of the graph
            self._first = tf.Variable(tf.zeros([count], tf.int64), trainable=False)
            self._differ = tf.Variable(False, trainable=False)

    def note(self, numbers):
        """Compare numbers in a graph. A step in which all are 0 shows nothing."""
        numbers = tf.stack([tf.cast(number, tf.int64) for number in numbers])
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
