"""The example in CONTRIBUTING.md runs and keeps its promise."""

import re

import hosts
import training
from cases import skip_file_on_keras2
from training import BIG, LENGTH, MICRO, assert_equal, compiled, dense_model, fit, weights

skip_file_on_keras2("example in CONTRIBUTING.md")

GUIDE = (hosts.PROJECT / "CONTRIBUTING.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"```python\n# on ([^\n]+)\n(.*?)```", GUIDE, re.S))


def test_the_example_equals_its_big_batch():
    code = BLOCKS["Keras 3" if hosts.IS_KERAS3 else "tf_keras"]
    found = {"__name__": "example"}
    exec(code.replace("import tf_keras as keras", hosts.IMPORT_KERAS), found)
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
