"""The example in CONTRIBUTING.md runs and keeps its promise."""

import re

import hosts
import pytest
import training
from cases import once_on_keras3
from training import BIG, LENGTH, MICRO, assert_equal, compiled, dense_model, fit, weights

GUIDE = (hosts.PROJECT / "CONTRIBUTING.md").read_text("utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", GUIDE, re.S)


@once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="the example is for Keras 3")
def test_the_example_equals_its_big_batch():
    found = {"__name__": "example"}
    exec(EXAMPLE, found)
    # weight_decay is handled by Keras's base class.
    arguments = {"learning_rate": 2**-6, "weight_decay": 2**-2}
    stock = compiled(dense_model(), found["NormalizedSGD"](**arguments))
    start = weights(stock)
    fit(stock, BIG)
    accumulate = found["NormalizedSGDAccumulate"](accum_iters=LENGTH, **arguments)
    ours = compiled(dense_model(), accumulate)
    fit(ours, MICRO)
    training.assert_moved(start, weights(stock))
    assert_equal(weights(ours), weights(stock))
    assert accumulate.completed_updates == training.UPDATES
    slots = enumerate(stock.optimizer.momentums)
    slots = {f"NormalizedSGD.momentum.{i}": hosts.array(slot) for i, slot in slots}
    assert_equal(accumulate.get_state(), slots)
