"""What PyTorch is asked to do on a device: waits for a number, and calls. We add no wait."""

from collections import namedtuple

import hosts
import numpy as np
import pytest
from hosts import keras
from training import LENGTH, assert_equal

if not hosts.IS_TORCH:
    pytest.skip("about the devices of PyTorch", allow_module_level=True)

from fake_device import Device, there


@pytest.fixture
def device():
    with keras.device("gpu:0"), Device() as device:
        yield device


SHAPES = (3, 2), (2,)
WINDOWS = 2
INSIDE = [0] * (LENGTH - 1)

# shared: arguments of both optimizers. ours: arguments of ours alone. inside: the waits of the
# micro-batches before the last one of a window. weights: in which form a step says its weight.
Row = namedtuple("Row", "name shared ours inside weights")
Row.__new__.__defaults__ = {}, {}, INSIDE, None
WEIGHTED = {"reduction": "weighted"}
LENGTHS = {"accum_iters": hosts.accum.AccumulationSchedule({0: LENGTH})}
ROWS = {
    "adam": Row("Adam"),
    "sgd": Row("SGD"),
    "clipnorm": Row("Adam", {"clipnorm": 0.5}),
    "schedule": Row("Adam", {"learning_rate": hosts.EachUpdate([0.25, 0.125])}),
    "ema": Row("Adam", {"use_ema": True}),
    "numbers_as_weights": Row("Adam", ours=WEIGHTED, weights=float),
    "tensors_as_weights": Row("Adam", ours=WEIGHTED, weights=there),
    # What Python must know: the number of updates when a window opens; whether to drop gradients.
    "lengths": Row("Adam", ours=LENGTHS, inside=[1, *INSIDE[1:]]),
    "skip_nonfinite": Row("Adam", ours={"skip_nonfinite": True}, inside=[1] * len(INSIDE)),
    "skip_norm": Row("Adam", ours={"skip_norm": 1e6}, inside=[1] * len(INSIDE)),
}


def train(device, optimizer, micro_batches, weights=None):
    """Return the number of waits in each micro-batch, and the trained weights."""
    variables = [keras.Variable(np.ones(shape, "float32")) for shape in SHAPES]
    optimizer.build(variables)
    counts = []
    for i, arrays in enumerate(micro_batches):
        grads = list(map(there, arrays))
        device.waits.clear()
        if weights is not None:
            optimizer.weigh(weights[i])
        optimizer.apply(grads, variables)
        counts.append(len(device.waits))
    return counts, {str(i): hosts.array(v.value.cpu()) for i, v in enumerate(variables)}


@pytest.mark.parametrize("name", ROWS)
def test_waits_of_a_window(device, name):
    """Inside, only what Python must know; at the end, what the stock optimizer waits for."""
    row, random, count = ROWS[name], np.random.default_rng(1), WINDOWS * LENGTH
    gradients = [random.uniform(0.5, 1.5, (count, *shape)).astype("float32") for shape in SHAPES]
    weights = random.uniform(1, 2, count) if row.weights else np.ones(count)
    windows = [slice(start, start + LENGTH) for start in range(0, count, LENGTH)]
    big = [[np.average(g[w], 0, weights[w]).astype("float32") for g in gradients] for w in windows]
    shared = {"learning_rate": 0.25, **row.shared}
    of_stock, expected = train(device, hosts.stock(row.name, **shared), big)
    said = row.weights and list(map(row.weights, weights))
    ours = hosts.ours(row.name, **{"accum_iters": LENGTH, **shared, **row.ours})
    counts, actual = train(device, ours, list(zip(*gradients)), said)
    assert_equal(actual, expected)
    most = max(of_stock) + row.inside[-1]
    for window in windows:
        *inside, end = counts[window]
        assert inside == row.inside and 0 < end <= most


OFTEN = [name for name in ROWS if ROWS[name].ours or name == "adam"]


@pytest.mark.parametrize("name", OFTEN)
def test_calls_inside_a_window(device, name):
    """They don't grow with the number of variables: each is a fused one, or for a single number."""
    row, calls = ROWS[name], {}
    for count in (2, 9):
        variables = [keras.Variable(np.ones(shape, "float32")) for shape in SHAPES * count]
        ours = hosts.ours(row.name, **{"accum_iters": LENGTH, **row.shared, **row.ours})
        ours.build(variables)
        for _ in range(2):  # the first one creates what is kept
            if row.weights:
                ours.weigh(row.weights(2.0))
            grads = [there(np.ones(shape)) for shape in SHAPES * count]
            device.calls.clear()
            ours.apply(grads, variables)
        calls[count] = list(device.calls)
    assert calls[2] == calls[9] and sum("_foreach_" in call for call in calls[2]) <= 2
