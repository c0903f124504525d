"""The example in CONTRIBUTING.md runs and keeps its promise."""

import re

import hosts
import numpy as np
import pytest
from hosts import keras
from training import LENGTH, assert_equal

if hosts.IS_KERAS2:
    pytest.skip("CONTRIBUTING.md has no example for Keras 2.0 to 2.3", allow_module_level=True)

GUIDE = hosts.PROJECT / "CONTRIBUTING.md"
BLOCKS = dict(re.findall(r"```python\n# on ([^\n]+)\n(.*?)```", GUIDE.read_text("utf-8"), re.S))


@pytest.fixture(scope="module")
def example():
    code = BLOCKS["Keras 3" if hosts.IS_KERAS3 else "tf_keras"]
    if not hosts.IS_KERAS3:
        code = code.replace("import tf_keras as keras", hosts.IMPORT_KERAS)
    names = {"__name__": "example"}
    exec(code, names)
    return names


def train(optimizer, batch_size):
    keras.utils.set_random_seed(0)
    x, y = (np.random.default_rng(0).normal(size=(12 * LENGTH, n)) for n in (5, 2))
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    start = model.get_weights()
    model.compile(optimizer=optimizer, loss="mean_squared_error")
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return start, model


def test_the_example_equals_its_big_batch(example):
    # weight_decay is handled by Keras's base class.
    arguments = {"learning_rate": 2**-6, "weight_decay": 2**-2}
    start, stock = train(example["NormalizedSGD"](**arguments), 4 * LENGTH)
    _, ours = train(example["NormalizedSGDAccumulate"](accum_iters=LENGTH, **arguments), 4)
    for before, after in zip(start, ours.get_weights()):
        assert np.abs(after - before).max() > 1e-2
    assert ours.optimizer.completed_updates == 6
    assert_equal(*(dict(enumerate(model.get_weights())) for model in (ours, stock)))
    slots = enumerate(stock.optimizer.momentums)
    slots = {f"NormalizedSGD.momentum.{i}": hosts.array(slot) for i, slot in slots}
    assert_equal(ours.optimizer.get_state(), slots)
