"""The order of writes in a train step on Keras 2.

TensorFlow 1 doesn't order operations: a weight could be overwritten before back-propagation reads
it, or a counter before the bias correction reads it. Here:

* adding to an accumulator waits for its gradient alone;
* accumulators are read after all additions (`Keras2Values.value`);
* the update, or its conditional, runs after loss, gradients, averages and scalars (`computed`);
* accumulators are reset after the update, and counters are written last (`after_writes`).
"""

import keras
import tensorflow as tf

from keras_accum.engine import parts
from keras_accum.tensorflow.values import TensorFlowValues


class Order:
    """The writes of a train step being built.

    computed: the loss and the gradients.
    writes: the operations so far.
    """

    def __init__(self):
        self.computed, self.writes = (), None

    def group(self, function, *arguments):
        """Call a function, and return one operation for all its writes."""
        outer, self.writes = self.writes, []
        try:
            function(*arguments)
            return tf.group(*self.writes)
        finally:
            self.writes = outer

    def after_writes(self):
        """Scope for operations to run after the writes so far."""
        return after(self.writes)


class Keras2Values(TensorFlowValues):
    """TensorFlow 1's mathematics for the engine."""

    def __init__(self, scalar_dtype, order):
        super().__init__(scalar_dtype)
        self._order = order

    def traces(self):
        return []  # one graph, no traced functions

    def value(self, variable):
        with self._order.after_writes():  # otherwise TensorFlow 1 may read too early
            return variable.read_value()

    def read_counter(self, counter):
        return self.value(counter)

    def count_if(self, condition):
        return self.as_count(condition)

    def one_when_computed(self, gradients):
        # Writes wait for gradients anyway. Waiting values would change the order in which
        # TensorFlow adds parts of a gradient, and so its rounding.
        return tf.ones([], tf.int64)


class Keras2Replicas(parts.Replicas):
    """A single device, and the session that runs a train step on it."""

    def __init__(self, order):
        self._order = order
        self.closing = None  # the operation to close the window

    def on(self, variable, function, *tensors):
        self._order.writes.append(function(variable, variable, *tensors))

    def on_each(self, variables, function, *lists):
        # Grouped, so that each read of an accumulator has one edge.
        writes = [function(v, v, *tensors) for v, *tensors in zip(variables, *lists)]
        self._order.writes.append(tf.group(*writes))

    def between_steps(self, function):
        if self.closing is None:
            self.closing = self._order.group(function)
        keras.backend.get_session().run(self.closing)


def after(values):
    """Scope for operations to run after these values, grouped to keep edges few."""
    values = [v for v in tf.nest.flatten(values) if hasattr(v, "device")]  # no numbers, no None
    return tf.control_dependencies([tf.group(*values)])
