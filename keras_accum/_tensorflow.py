"""What all three hosts need of TensorFlow: gates, sparse gradients and fused kernels.

No Keras is imported here. A fused kernel does in one pass what `step` of its rule says, from the
same gated scalars.
"""

import tensorflow as tf

from keras_accum import _rules


def gate(value, factor):
    """value * factor, and zero where the factor is, also where value is infinite or NaN."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(gate(value.values, factor), value.indices, value.dense_shape)
    return tf.math.multiply_no_nan(value, factor)


def all_finite(grads):
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values])


def add(accumulator, gradient):
    """The accumulator's value plus a gradient, repeated indices of a sparse one added up."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(
            accumulator, gradient.indices[:, None], tf.cast(gradient.values, accumulator.dtype)
        )
    return accumulator + tf.cast(gradient, accumulator.dtype)


def accumulate(accumulator, gradient):
    """Add a gradient to a variable where it stands, and return the operation."""
    dtype = accumulator.dtype.base_dtype
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.cast(gradient.values, dtype)
        return accumulator.scatter_add(
            tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        )
    return accumulator.assign_add(tf.cast(gradient, dtype))


def replica():
    """The number of the replica that is run or traced, 0 where one is for all."""
    context = tf.distribute.get_replica_context()
    number = None if context is None else tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if number is None else int(number)


def in_replicas(strategy, function):
    """Call a function as `strategy.run` does a train step, from outside of one or from within."""
    outside = not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context()
    if strategy is not None and outside:
        strategy.run(tf.autograph.experimental.do_not_convert(function))
    else:
        function()


def apply_rule(rule, c, gradient, parameter, slots):
    """Write the new parameter and slots, variables all, and return the operations, in a graph."""
    kernel = _KERNELS.get(type(rule))
    if kernel is not None:
        operation = kernel(rule, c, gradient, parameter, *slots)
        return [] if operation is None else [operation]
    variables = (parameter,) + tuple(slots)
    values = rule.step(tf, c, gradient, *map(tf.convert_to_tensor, variables))
    with tf.control_dependencies(values):  # in a TensorFlow 1 graph a read is of what is there now
        return [variable.assign(value) for variable, value in zip(variables, values)]


def _run(kernel, variables, **arguments):
    """Call a training kernel of TensorFlow on variables, which are references in TensorFlow 1."""
    if all(hasattr(variable, "handle") for variable in variables.values()):
        kernel = f"Resource{kernel}"
        variables = {name: variable.handle for name, variable in variables.items()}
    return getattr(tf.raw_ops, kernel)(**variables, **arguments, use_locking=True)


def _sgd(rule, c, gradient, parameter, *slots):
    if not slots:
        var = {"var": parameter}
        return _run("ApplyGradientDescent", var, alpha=c["rate"], delta=gradient)
    # Keras's own momentum kernel adds the velocity to the parameter with no scalar to gate it. This
    # one, u <- mu u + d; p <- p - lr u, does the same from d = -rate G and lr = -switch.
    return _run(
        "ApplyMomentum",
        {"var": parameter, "accum": slots[0]},
        lr=-c["switch"],
        grad=-c["rate"] * gradient,
        momentum=1 - c["friction"],
        use_nesterov=rule.nesterov,
    )


def _adam(rule, c, gradient, parameter, momentum, velocity):
    # Alpha has the bias correction in it: with both powers at zero the kernel takes lr as it is.
    zero = tf.zeros([], gradient.dtype)
    return _run(
        "ApplyAdam",
        {"var": parameter, "m": momentum, "v": velocity},
        beta1_power=zero,
        beta2_power=zero,
        lr=c["alpha"],
        beta1=1 - c["rate_1"],
        beta2=1 - c["rate_2"],
        epsilon=c["epsilon"],
        grad=gradient,
    )


_KERNELS = {_rules.SGD: _sgd, _rules.Adam: _adam}
