"""What all three hosts need from TensorFlow: gates, sparse gradients and fused kernels.

No Keras is imported here. A fused kernel computes the `step` of its rule in one pass, from the same
gated scalars.
"""

import contextlib
import math

import tensorflow as tf

from keras_accum import rules


def as_type(value, dtype):
    """Return a value as a tensor of this type. `tf.cast` makes a Python number a float32 first."""
    return tf.constant(value, dtype) if isinstance(value, float) else tf.cast(value, dtype)


def gate(value, factor):
    """Return value * factor; zero where the factor is zero, even for an infinite or NaN value."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(gate(value.values, factor), value.indices, value.dense_shape)
    return tf.math.multiply_no_nan(value, factor)


def all_finite(grads):
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values])


def after(grads):
    """A scope for operations that must not run before these gradients are computed.

    At the end of a dataset of unknown length, a train step fails because there are no more data.
    Operations that don't depend on the data could run before the failure.
    """
    return tf.control_dependencies([tf.group(*[getattr(g, "values", g) for g in grads])])


def add(accumulator, gradient):
    """Return the accumulator's value plus a gradient; repeated sparse indices are added up."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(
            accumulator, gradient.indices[:, None], tf.cast(gradient.values, accumulator.dtype)
        )
    return accumulator + tf.cast(gradient, accumulator.dtype)


def accumulate(accumulator, gradient):
    """Add a gradient to a variable in place, and return the operation."""
    dtype = accumulator.dtype.base_dtype
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.cast(gradient.values, dtype)
        return accumulator.scatter_add(
            tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        )
    return accumulator.assign_add(tf.cast(gradient, dtype))


def check_no_tensor(variables):
    """Raise the stock optimizers' error if a tensor is in the place of a variable."""
    for variable in variables:
        if isinstance(variable, tf.Tensor):
            raise NotImplementedError(
                "Updating a `Tensor` is not implemented: pairs of gradients and variables need "
                f"the `tf.Variable` itself. Received: var={variable}"
            )


# AutoGraph would convert all functions of ours that a user's `tf.function` calls, which is slow.
as_written = tf.autograph.experimental.do_not_convert


def replica():
    """Return the number of the replica that is run or traced; 0 outside of replicas."""
    context = tf.distribute.get_replica_context()
    number = None if context is None else tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if number is None else int(number)


def in_replicas(strategy, function):
    """Call a function in each replica, from outside of `strategy.run` or from within a replica."""
    outside = not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context()
    if strategy is not None and outside:
        strategy.run(as_written(function))
    else:
        function()


@contextlib.contextmanager
def sums_of_replicas(strategy):
    """A scope whose variables have a value per replica, and outside of replicas their sum.

    The sum is read, saved and restored, so files don't depend on the number of replicas.
    """

    def creator(next_creator, initial_value=None, **arguments):
        def zeros():
            # A checkpoint's initial value is the sum; each copy starts at zero instead.
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
                "own, MirroredStrategy or MultiWorkerMirroredStrategy. Leave all_reduce out. "
                f"Received: {type(used).__name__}"
            )
        with tf.variable_creator_scope(creator):
            yield


def variables_in_float32():
    """A scope whose variables are float32 zeros, whatever dtype the caller asks for."""

    def creator(next_creator, initial_value=None, **arguments):
        def zeros():
            value = initial_value() if callable(initial_value) else initial_value
            return tf.zeros_like(getattr(value, "wrapped_value", value), tf.float32)

        return next_creator(initial_value=zeros, **{**arguments, "dtype": tf.float32})

    return tf.variable_creator_scope(creator)


def branch(strategy, switch, update, accumulate, *tensors):
    """Make all replicas call one of two functions with their tensors.

    With several replicas, call this in cross-replica context: inside a replica, a conditional can't
    contain cross-replica operations.
    """
    if not tf.distribute.in_cross_replica_context():
        return tf.cond(switch > 0, lambda: update(*tensors), lambda: accumulate(*tensors))

    def in_replicas(function):
        def call():
            done = strategy.extended.call_for_each_replica(function, args=tensors)
            done = strategy.experimental_local_results(done)
            return tf.group(*[operation for operation in done if operation is not None])

        return call

    switch = strategy.experimental_local_results(switch)[0]  # the same on all replicas
    return tf.cond(switch > 0, in_replicas(update), in_replicas(accumulate))


def write(variable, value):
    """Write a variable copy by copy, so that the thread of a single replica may call this."""
    copies = getattr(variable, "values", None)
    if copies is not None and variable.aggregation == tf.VariableAggregation.SUM:
        # Each copy holds its share of the sum.
        value = value / variable.distribute_strategy.num_replicas_in_sync
    for copy in copies or [variable]:
        copy.assign(tf.cast(value, copy.dtype))


def kernel_scalars(rule, coefficients):
    """Return the coefficients as the rule's kernel takes them, if the rule has a kernel."""
    scalars, _ = _KERNELS.get(type(rule), (None, None))
    return scalars(rule, coefficients) if scalars else coefficients


def apply_rule(rule, scalars, gradient, parameter, slots):
    """Write the new values to the variables of parameter and slots; return the operations."""
    _, kernel = _KERNELS.get(type(rule), (None, None))
    if kernel:
        operation = kernel(rule, scalars, gradient, parameter, *slots)
        return [] if operation is None else [operation]
    variables = (parameter,) + tuple(slots)
    values = rule.step(tf, scalars, gradient, *map(tf.convert_to_tensor, variables))
    with tf.control_dependencies(values):  # TensorFlow 1 doesn't order reads before writes
        return [variable.assign(value) for variable, value in zip(variables, values)]


def _run(kernel, variables, **arguments):
    """Call a training kernel on variables: resources in TensorFlow 2, references in 1."""
    if all(hasattr(variable, "handle") for variable in variables.values()):
        kernel = f"Resource{kernel}"
        variables = {name: variable.handle for name, variable in variables.items()}
    return getattr(tf.raw_ops, kernel)(**variables, **arguments, use_locking=True)


def _sgd_scalars(rule, c):
    if not rule.slots:
        return {"alpha": c["rate"]}
    # Keras's own momentum kernel adds the velocity to the parameter without a scalar that could be
    # gated. The kernel here, u <- mu u + d; p <- p - lr u, gives the same with d = -rate G and
    # lr = -switch.
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
    # Alpha includes the bias correction. With both powers zero, the kernel doesn't correct lr.
    zero = tf.zeros([], c["alpha"].dtype)
    return {
        "beta1_power": zero,
        "beta2_power": zero,
        "lr": c["alpha"],
        "beta1": 1 - c["rate_1"],
        "beta2": 1 - c["rate_2"],
        "epsilon": c["epsilon"],
    }


def without_rounded_betas(c, beta_1, beta_2, dtype):
    """Return coefficients with which Adam's kernel makes the step of an unrounded 1 - beta.

    The kernel computes 1 - beta from a rounded beta: 1 - 0.999 has a relative error of 1.3e-5 in
    float32. The kernel's moments are the unrounded moments times a constant, for which alpha and
    epsilon compensate.
    """
    real = tf.as_dtype(dtype).as_numpy_dtype
    one, rates = real(1), (real(1 - beta) for beta in (beta_1, beta_2))
    first, second = (float((one - (one - rate)) / rate) if rate else 1.0 for rate in rates)
    root = math.sqrt(second)
    return {**c, "alpha": c["alpha"] * (root / first), "epsilon": c["epsilon"] * root}


def _adam(rule, scalars, gradient, parameter, momentum, velocity):
    variables = {"var": parameter, "m": momentum, "v": velocity}
    return _run("ApplyAdam", variables, grad=gradient, **scalars)


_KERNELS = {rules.SGD: (_sgd_scalars, _sgd), rules.Adam: (_adam_scalars, _adam)}
