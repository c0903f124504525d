"""Trainings on the replicas of a strategy, for test_distribution.py.

`python replicas.py DEVICES FROM TO FIRST LAST [LATE]` makes a part of a training on some devices:
one process can have only one MirroredStrategy. It continues from the model in the file FROM, or
begins with the arguments LATE (as JSON) if there is no such file, trains on the micro-batches from
FIRST to LAST, and writes the model to TO.
"""

import json
import sys
from pathlib import Path

import hosts
import numpy as np
import training
from cases import ADAM, CASES
from hosts import keras
from processes import PARTIAL
from training import BIG, LENGTH, MICRO, batches, compiled, data, dense_model, fit, squares

MICRO_BATCH, SAMPLES = 6, 22  # the last micro-batch has 4 samples: 2, 2 and 0 on 3 devices


# -- hand-written loops ------------------------------------------------------------------------


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


# -- a part of a training in a process ---------------------------------------------------------


def train(path, first, last, case, **late):
    if path.exists():
        model = keras.models.load_model(str(path))
    else:
        arguments = {"accum_iters": LENGTH, "reduction": "weighted", **case.arguments, **late}
        optimizer = hosts.ours(case.name, **arguments)
        model = compiled(dense_model(), optimizer, hosts.mean_squared_error())
    arrays = [array[:SAMPLES][MICRO_BATCH * first : MICRO_BATCH * last] for array in data()]
    fit(model, MICRO_BATCH, arrays, epochs=1, callbacks=[hosts.accum.MicroBatchWeights()])
    return model


def main(devices, start, end, first, last, late="{}"):
    hosts.set_floatx(hosts.FLOATX)
    first, last = int(first), int(last)
    strategy = hosts.tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(int(devices))])
    with strategy.scope():
        model = train(Path(start), first, last, CASES["amsgrad"], **json.loads(late))
    optimizer = model.optimizer
    assert optimizer.window_position == last % LENGTH
    for variable in map(hosts.native, hosts.stock_variables(optimizer)):
        copies = variable.values
        assert len(copies) == strategy.num_replicas_in_sync
        # With the aggregation SUM, each replica holds its own part of the sum.
        if variable.aggregation != hosts.tf.VariableAggregation.SUM:
            for copy in copies:
                np.testing.assert_array_equal(copy.numpy(), copies[0].numpy(), variable.name)
    expected = min(SAMPLES, MICRO_BATCH * last) if last % LENGTH else 0
    assert optimizer.get_state()["window_weight"] == expected
    model.save(end)


if __name__ == "__main__":
    main(*sys.argv[1:])
