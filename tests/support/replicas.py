"""Hand-written loops, on one device and on the replicas of a strategy, for test_distribution.py."""

import hosts
import numpy as np
import training
from cases import ADAM
from processes import PARTIAL
from training import BIG, LENGTH, MICRO, batches, data, squares


def whole_and_partial():
    """Arrays of seven windows, and arrays of two further micro-batches."""
    arrays = [np.concatenate([array] * 3) for array in data()]
    end = 7 * BIG
    return [a[:end] for a in arrays], [a[end : end + PARTIAL * MICRO] for a in arrays]


def single_device(options):
    """The stock optimizer on one device: big batches, then the last two micro-batches as one."""
    optimizer = hosts.stock("Adam", **{**ADAM.arguments, **options})
    variables = training.linear_variables()
    native = [hosts.native(v) for v in variables]
    whole, partial = whole_and_partial()
    for x, y in [*batches(BIG, whole), partial]:
        with hosts.tf.GradientTape() as tape:
            loss = hosts.tf.reduce_mean(squares(*native, x, y))
        hosts.apply(optimizer, tape.gradient(loss, native), variables)
    found = training.values(optimizer, variables)
    training.assert_moved(training.START, {name: found[name] for name in training.START})
    return found


def counting():
    """A strategy of two replicas, and a count of its reductions, at each run in the graph."""
    tf = hosts.tf
    executed = tf.Variable(0)

    class Counting(tf.distribute.ReductionToOneDevice):
        def batch_reduce_implementation(self, *arguments):
            executed.assign_add(1)
            return super().batch_reduce_implementation(*arguments)

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], Counting()), executed


def in_strategy(strategy, options, **more):
    """Our optimizer on micro-batches, each of which is split among the replicas."""
    tf = hosts.tf
    with strategy.scope():
        variables = training.linear_variables()
        arguments = {"accum_iters": LENGTH, **ADAM.arguments, **options, **more}
        optimizer = hosts.ours("Adam", **arguments)
        if hosts.IS_KERAS3:
            optimizer.build(variables)  # Keras 3 can't build an optimizer in a replica's graph

    @tf.function
    def step(x, y):
        def replica(x, y):
            native = [hosts.native(v) for v in variables]
            with tf.GradientTape() as tape:
                # A replica's part of the micro-batch's mean.
                loss = tf.reduce_sum(squares(*native, x, y)) / (MICRO * y.shape[1])
            optimizer.apply_gradients(zip(tape.gradient(loss, native), variables))

        strategy.run(replica, (x, y))

    def shared_out(array):
        replicas = strategy.num_replicas_in_sync

        def share(context):
            return tf.constant(array[context.replica_id_in_sync_group :: replicas])

        return strategy.experimental_distribute_values_from_function(share)

    traces = set()
    for x, y in sum((batches(MICRO, arrays) for arrays in whole_and_partial()), []):
        step(shared_out(x), shared_out(y))
        traces.add(step.experimental_get_tracing_count())
    assert len(traces) == 1
    assert optimizer.window_position == PARTIAL
    optimizer.apply_partial_window()
    return training.values(optimizer, variables)
