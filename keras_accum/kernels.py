"""What all three hosts need of TensorFlow: gates, sparse gradients and fused kernels.

No Keras is imported here. A fused kernel does in one pass what `step` of its rule says, from the
same gated scalars.
"""

import contextlib

import tensorflow as tf

from keras_accum import rules


def gate(value, factor):
    """value * factor, and zero where the factor is, also where value is infinite or NaN."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(gate(value.values, factor), value.indices, value.dense_shape)
    return tf.math.multiply_no_nan(value, factor)


def all_finite(grads):
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values])


def after(grads):
    """A scope for what must not run before these gradients are there.

    At the end of a dataset of unknown length a train step fails for want of data, and what doesn't
    depend on the data may have run before it fails.
    """
    return tf.control_dependencies([tf.group(*[getattr(g, "values", g) for g in grads])])


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


@contextlib.contextmanager
def sums_of_replicas(strategy):
    """Variables that are made in here have a value for each replica, and outside of one their sum.

    That is what is read, saved and restored: nothing depends on how many replicas there were.
    """

    def creator(next_creator, initial_value=None, **arguments):
        def zeros():
            # Not the value that a checkpoint gives to be read: that is the sum, for all copies.
            value = initial_value() if callable(initial_value) else initial_value
            return tf.zeros_like(getattr(value, "wrapped_value", value))

        synchronization, aggregation = tf.VariableSynchronization, tf.VariableAggregation
        arguments.update(synchronization=synchronization.ON_READ, aggregation=aggregation.SUM)
        return next_creator(initial_value=zeros, **arguments)

    outside = strategy is not None and not tf.distribute.has_strategy()
    with strategy.scope() if outside else contextlib.nullcontext():
        used = tf.distribute.get_strategy()
        mirrored = tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy
        if used.num_replicas_in_sync > 1 and not isinstance(used, mirrored):
            raise ValueError(
                "all_reduce='per_window' needs a strategy whose replicas have variables of their "
                "own, MirroredStrategy or MultiWorkerMirroredStrategy. Leave it out. Received: "
                f"{type(used).__name__}"
            )
        with tf.variable_creator_scope(creator):
            yield


def variables_in_float32():
    """A scope for variables that begin as zeros, whatever the data type that is asked for."""

    def creator(next_creator, initial_value=None, **arguments):
        def zeros():
            value = initial_value() if callable(initial_value) else initial_value
            return tf.zeros_like(getattr(value, "wrapped_value", value), tf.float32)

        return next_creator(initial_value=zeros, **{**arguments, "dtype": tf.float32})

    return tf.variable_creator_scope(creator)


def branch(strategy, switch, update, accumulate, *tensors):
    """Have all replicas call one of two functions with their tensors.

    To be called across replicas, if there are several: in one of them there can be no conditional
    around what is done across them all.
    """
    if not tf.distribute.in_cross_replica_context():
        return tf.cond(switch > 0, lambda: update(*tensors), lambda: accumulate(*tensors))

    def in_replicas(function):
        function = tf.autograph.experimental.do_not_convert(function)

        def call():
            done = strategy.extended.call_for_each_replica(function, args=tensors)
            done = strategy.experimental_local_results(done)
            return tf.group(*[operation for operation in done if operation is not None])

        return call

    switch = strategy.experimental_local_results(switch)[0]  # which is the same on all of them
    return tf.cond(switch > 0, in_replicas(update), in_replicas(accumulate))


def write(variable, value):
    """Write a variable, each replica's copy by itself: a thread of one of them may call this."""
    copies = getattr(variable, "values", None)
    if copies is not None and variable.aggregation == tf.VariableAggregation.SUM:
        value = value / variable.distribute_strategy.num_replicas_in_sync  # a part of the sum
    for copy in copies or [variable]:
        copy.assign(tf.cast(value, copy.dtype))


def kernel_scalars(rule, coefficients):
    """A rule's coefficients as its kernel takes them, where it has one; once for a data type."""
    scalars, _ = _KERNELS.get(type(rule), (None, None))
    return scalars(rule, coefficients) if scalars else coefficients


def apply_rule(rule, scalars, gradient, parameter, slots):
    """Write the new parameter and slots, variables all, and return the operations, in a graph."""
    _, kernel = _KERNELS.get(type(rule), (None, None))
    if kernel:
        operation = kernel(rule, scalars, gradient, parameter, *slots)
        return [] if operation is None else [operation]
    variables = (parameter,) + tuple(slots)
    values = rule.step(tf, scalars, gradient, *map(tf.convert_to_tensor, variables))
    with tf.control_dependencies(values):  # in a TensorFlow 1 graph a read is of what is there now
        return [variable.assign(value) for variable, value in zip(variables, values)]


def _run(kernel, variables, **arguments):
    """Call a training kernel of TensorFlow on variables, which are references in TensorFlow 1."""
    if all(hasattr(variable, "handle") for variable in variables.values()):
        kernel = f"Resource{kernel}"
        variables = {name: variable.handle for name, variable in variables.items()}
    return getattr(tf.raw_ops, kernel)(**variables, **arguments, use_locking=True)


def _sgd_scalars(rule, c):
    if not rule.slots:
        return {"alpha": c["rate"]}
    # Keras's own momentum kernel adds the velocity to the parameter with no scalar to gate it. This
    # one, u <- mu u + d; p <- p - lr u, does the same from d = -rate G and lr = -switch.
    return {"lr": -c["switch"], "momentum": 1 - c["friction"], "minus_rate": -c["rate"]}


def _sgd(rule, scalars, gradient, parameter, *slots):
    if not slots:
        return _run("ApplyGradientDescent", {"var": parameter}, delta=gradient, **scalars)
    return _run(
        "ApplyMomentum",
        {"var": parameter, "accum": slots[0]},
        lr=scalars["lr"],
        grad=scalars["minus_rate"] * gradient,
        momentum=scalars["momentum"],
        use_nesterov=rule.nesterov,
    )


def _adam_scalars(rule, c):
    # Alpha has the bias correction in it: with both powers at zero the kernel takes lr as it is.
    zero = tf.zeros([], c["alpha"].dtype)
    return {
        "beta1_power": zero,
        "beta2_power": zero,
        "lr": c["alpha"],
        "beta1": 1 - c["rate_1"],
        "beta2": 1 - c["rate_2"],
        "epsilon": c["epsilon"],
    }


def _adam(rule, scalars, gradient, parameter, momentum, velocity):
    variables = {"var": parameter, "m": momentum, "v": velocity}
    return _run("ApplyAdam", variables, grad=gradient, **scalars)


_KERNELS = {rules.SGD: (_sgd_scalars, _sgd), rules.Adam: (_adam_scalars, _adam)}
