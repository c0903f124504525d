"""TensorFlow's mathematics for the engine, for every Keras on it. Imports no Keras."""

import tensorflow as tf

from keras_accum.engine import parts
from keras_accum.host import check_members, import_private

# Otherwise AutoGraph converts our functions in a user's `tf.function`.
as_written = tf.autograph.experimental.do_not_convert
# Private members of TensorFlow.
IN_XLA = "tensorflow.python.ops.control_flow_util", "GraphOrParentsInXlaContext"
OF_GRAPH = ("outer_graph",)
_PARTS = tf.math.real, tf.math.imag


class TensorFlowValues(parts.Values):
    """TensorFlow's tensors.

    native(variable): The TensorFlow variable inside a Keras variable.
    """

    ops = tf.compat.v2  # in TensorFlow 1, `tf.where` is a deprecated function

    def __init__(self, scalar_dtype, native=lambda variable: variable):
        super().__init__(scalar_dtype)
        self.native = native

    def traces(self):
        return list_graphs()

    def value(self, variable):
        value = tf.convert_to_tensor(self.native(variable))
        # A reduction needs the replica's device, which a variable read lacks.
        is_shared = tf.distribute.get_strategy().num_replicas_in_sync > 1
        return tf.identity(value) if is_shared else value

    def add_in_place(self, variable, value):
        return add_in_place(variable, value)

    def one_when_computed(self, gradients):
        if not self.is_traced():
            return 1
        with after(gradients):  # all counters and switches depend on this number
            return tf.ones([], tf.int64)

    def as_count(self, condition):
        return tf.cast(tf.cast(condition, tf.bool), tf.int64)

    def cast(self, value, dtype):
        # `tf.cast` makes a Python number a float32 first.
        return tf.constant(value, dtype) if isinstance(value, float) else tf.cast(value, dtype)

    def times(self, value, factor):
        if isinstance(value, tf.IndexedSlices):
            values = self.times(value.values, factor)
            return tf.IndexedSlices(values, value.indices, value.dense_shape)
        return tf.math.multiply_no_nan(value, factor)

    def remainder(self, total, hold, written):
        # TensorFlow Lite makes a scalar of `multiply_no_nan` by a constant zero.
        is_zero = not tf.executing_eagerly() and tf.get_static_value(hold) == 0
        remainder = tf.zeros_like(total) if is_zero else super().remainder(total, hold, written)
        if total.dtype.is_complex or not (self.is_traced() and is_compiled_by_xla()):
            return remainder
        # Otherwise XLA copies the sum, as on JAX (see `JaxValues.remainder`).
        return tf.where(self.value(written) > float("inf"), total, remainder)

    def all_finite(self, gradients):
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        # `is_finite` takes no complex numbers, and their absolute value could overflow.
        of_complex = [part(v) for v in values if v.dtype.is_complex for part in _PARTS]
        values = [v for v in values if not v.dtype.is_complex] + of_complex
        return self.count_if(tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values]))

    def norm(self, tensors):
        dense = [tf.cast(tf.abs(tf.convert_to_tensor(t)), self.scalar_dtype) for t in tensors]
        return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tensor)) for tensor in dense]))

    def dense(self, gradient):
        return tf.convert_to_tensor(gradient)


def add_in_place(target, gradient):
    """Add a gradient, sparse or dense, to a variable of any dtype."""
    dtype = target.dtype.base_dtype
    if not isinstance(gradient, tf.IndexedSlices):
        return target.assign_add(tf.cast(gradient, dtype))
    values = tf.cast(gradient.values, dtype)
    return target.scatter_add(tf.IndexedSlices(values, gradient.indices, gradient.dense_shape))


def after(values):
    """Scope for operations to run after these values.

    Otherwise they could run although the train step fails for lack of data.
    """
    return tf.control_dependencies([tf.group(*[getattr(v, "values", v) for v in values])])


def is_compiled_by_xla():
    """Return True if XLA compiles the current trace."""
    if not tf.inside_function():
        return False
    is_compiled = import_private(tf, *IN_XLA)
    return is_compiled(tf.compat.v1.get_default_graph())


def list_graphs():
    """Return the graphs of the functions being traced, the innermost first."""
    graphs = []
    if not tf.inside_function():
        return graphs
    graph = tf.compat.v1.get_default_graph()
    check_members(tf, graph, OF_GRAPH)
    while hasattr(graph, "outer_graph"):
        graphs.append(graph)
        graph = graph.outer_graph
    return graphs
