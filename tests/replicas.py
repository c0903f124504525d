"""Part of a training on some devices: `python replicas.py DEVICES FROM TO FIRST LAST [LATE]`.

The process continues from the model in the file FROM, or begins a training with the arguments LATE
(as JSON) if FROM doesn't exist. It trains on the micro-batches from FIRST to LAST and writes the
model to TO. One process can have only one MirroredStrategy. See test_distribution.py.
"""

import json
import sys
from pathlib import Path

import hosts
import numpy as np
from cases import CASES
from hosts import keras
from processes import PARTIAL
from training import (
    BIG,
    LENGTH,
    MICRO,
    batches,
    compiled,
    data,
    dense_model,
    fit,
    linear_variables,
    squares,
    values,
)

MICRO_BATCH, SAMPLES = 6, 22  # the last micro-batch has 4 samples: 2, 2 and 0 on 3 devices


def whole_and_partial():
    """Arrays of seven windows, and arrays of two further micro-batches."""
    arrays = [np.concatenate([array] * 3) for array in data()]
    end = 7 * BIG
    return [a[:end] for a in arrays], [a[end : end + PARTIAL * MICRO] for a in arrays]


def in_strategy(strategy, case, options, **more):
    """Our optimizer on micro-batches, each of which is split among the replicas."""
    tf = hosts.tf
    with strategy.scope():
        variables = linear_variables()
        arguments = {"accum_iters": LENGTH, **case.arguments, **options, **more}
        optimizer = hosts.ours(case.name, **arguments)
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

    traces = []
    for x, y in sum((batches(MICRO, arrays) for arrays in whole_and_partial()), []):
        step(shared_out(x), shared_out(y))
        traces.append(step.experimental_get_tracing_count())
    assert traces[0] == traces[-1]
    assert optimizer.window_position == PARTIAL
    optimizer.apply_partial_window()
    return values(optimizer, variables)


def samples(first, last):
    return [array[:SAMPLES][MICRO_BATCH * first : MICRO_BATCH * last] for array in data()]


def train(path, first, last, case, **late):
    if path.exists():
        model = keras.models.load_model(str(path))
    else:
        arguments = {"accum_iters": LENGTH, "reduction": "weighted", **case.arguments, **late}
        optimizer = hosts.ours(case.name, **arguments)
        model = compiled(dense_model(), optimizer, hosts.mean_squared_error())
    weighs = hosts.accum.MicroBatchWeights()
    fit(model, MICRO_BATCH, samples(first, last), epochs=1, callbacks=[weighs])
    return model


def main(devices, start, end, first, last, late="{}"):
    hosts.set_floatx(hosts.FLOATX)
    names = [f"CPU:{i}" for i in range(int(devices))]
    strategy = hosts.tf.distribute.MirroredStrategy(names)
    with strategy.scope():
        model = train(Path(start), int(first), int(last), CASES["amsgrad"], **json.loads(late))
    assert model.optimizer.window_position == int(last) % LENGTH
    for variable in hosts.stock_variables(model.optimizer):
        copies = getattr(hosts.native(variable), "values", [])
        assert len(copies) == strategy.num_replicas_in_sync
        if hosts.native(variable).aggregation == hosts.tf.VariableAggregation.SUM:
            continue  # each replica holds its own part of the sum
        for copy in copies:
            np.testing.assert_array_equal(copy.numpy(), copies[0].numpy(), err_msg=variable.name)
    expected = sum(map(len, samples(0, int(last))[:1])) if int(last) % LENGTH else 0
    assert model.optimizer.get_state()["window_weight"] == expected
    model.save(end)


if __name__ == "__main__":
    main(*sys.argv[1:])
