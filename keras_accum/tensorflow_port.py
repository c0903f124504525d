"""What the ports to TensorFlow share. No Keras is imported here."""

import contextlib

import tensorflow as tf

from keras_accum import kernels
from keras_accum.port import Port


class TensorFlowPort(Port):
    """A port whose values are TensorFlow's. A host says with which strategy it distributes."""

    ops = counts_with = tf.compat.v2  # in TensorFlow 1, `tf.where` is a deprecated function

    def key(self, variable):
        return variable.ref()

    def name_of(self, variable):
        return variable.name

    # -- values ------------------------------------------------------------------------------------

    def value(self, variable):
        return tf.convert_to_tensor(variable)

    def one_after(self, gradients):
        with kernels.after(gradients):  # all counters and switches depend on this number
            return tf.ones([], tf.int64)

    def count_if(self, condition):
        return tf.cast(tf.cast(condition, tf.bool), tf.int64)

    def cast(self, value, dtype):
        return kernels.as_type(value, dtype)

    def times(self, value, factor):
        return kernels.gate(value, factor)

    def plus(self, total, gradient):
        return kernels.add(total, gradient)

    def all_finite(self, gradients):
        return tf.cast(kernels.all_finite(gradients), tf.int64)

    def is_finite(self, value):
        return tf.math.is_finite(value)

    def norm(self, tensors):
        dense = [tf.cast(tf.convert_to_tensor(t), self.scalar_dtype) for t in tensors]
        return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tensor)) for tensor in dense]))

    def dense(self, gradient):
        return tf.convert_to_tensor(gradient)

    def add_to(self, target, gradient):
        return kernels.accumulate(target, gradient)

    # -- replicas and control flow -----------------------------------------------------------------

    @property
    def strategy(self):
        """The strategy with which the optimizer was made."""
        return self.optimizer._distribution_strategy

    def is_traced(self):
        return tf.inside_function()

    def replica(self):
        return kernels.replica()

    def replicas(self):
        return tf.distribute.get_strategy().num_replicas_in_sync

    def in_any_replica(self, count):
        if self.replicas() == 1:
            return count
        replicas = tf.distribute.get_replica_context()
        return tf.minimum(replicas.all_reduce(tf.distribute.ReduceOp.SUM, count), 1)

    def sum_scope(self):
        if not self.accumulation.options.reduces_late:
            return contextlib.nullcontext()
        return kernels.sums_of_replicas(self.strategy)

    def across(self, function, *tensors):
        return tf.__internal__.distribute.interim.maybe_merge_call(
            lambda strategy, *values: function(*values), tf.distribute.get_strategy(), *tensors
        )

    def on(self, variable, function, *tensors):
        return tf.distribute.get_strategy().extended.update(
            variable,
            lambda target, *values: function(variable, target, *values),
            args=tensors,
            group=False,
        )

    def branch(self, step, gradients, update, add):
        def across(step, gradients):
            strategy = tf.distribute.get_strategy()
            return kernels.branch(strategy, step.switch, update, add, step, gradients)

        self.across(across, step, gradients)

    def between_steps(self, function, *arguments):
        kernels.in_replicas(self.strategy, lambda: function(*arguments))
