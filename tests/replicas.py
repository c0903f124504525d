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
from training import compiled, data, dense_model, fit

LENGTH, MICRO, SAMPLES = 4, 6, 22  # the last micro-batch has 4 samples: 2, 2 and 0 on 3 devices


def samples(first, last):
    return [array[:SAMPLES][MICRO * first : MICRO * last] for array in data()]


def train(path, first, last, case, **late):
    if path.exists():
        model = keras.models.load_model(str(path))
    else:
        arguments = {"accum_iters": LENGTH, "reduction": "weighted", **case.arguments, **late}
        optimizer = hosts.ours(case.name, **arguments)
        model = compiled(dense_model(), optimizer, hosts.mean_squared_error())
    fit(model, MICRO, samples(first, last), epochs=1, callbacks=[hosts.accum.MicroBatchWeights()])
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
