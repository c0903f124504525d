"""The example in CONTRIBUTING.md is code that works."""

import re
from pathlib import Path

import hosts
import numpy as np
import pytest
from cases import keras2_has_no, thorough
from hosts import accum, keras

from keras_accum import rules

GUIDE = Path(__file__).parent.parent / "CONTRIBUTING.md"


@pytest.fixture
def adamw(monkeypatch):
    """AdamWAccumulate, defined by the guide's own lines in the modules that they name."""
    before = {module: dict(vars(module)) for module in (rules, accum)}
    blocks = re.findall(r"```python\n# keras_accum/(\w+)\.py\n(.*?)```", GUIDE.read_text(), re.S)
    modules = {module.__name__.split(".")[-1]: module for module in before}
    assert {name for name, _ in blocks} == {"rules", "keras3", "tf_keras", "keras2"}
    for name, code in blocks:
        if name in modules:
            exec(code, vars(modules[name]))
    yield accum.AdamWAccumulate
    for module, names in before.items():
        for name in set(vars(module)) - set(names):
            delattr(module, name)


def train(optimizer, batch_size):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 5)).astype("float32")
    y = generator.normal(size=(60, 2)).astype("float32")
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
    model.build((None, 5))
    start = [w.copy() for w in model.get_weights()]
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return start, model.get_weights()


@thorough
@keras2_has_no("AdamW: the test below")
@pytest.mark.parametrize("accum_iters", [1, 5])
def test_the_example_equals_the_stock_optimizer(adamw, accum_iters):
    arguments = {"learning_rate": 0.01, "weight_decay": 0.1}
    start, ours = train(adamw(accum_iters=accum_iters, **arguments), 20 // accum_iters)
    _, stock = train(keras.optimizers.AdamW(**arguments), 20)
    for a, b, c in zip(start, ours, stock):
        assert np.abs(a - b).max() > 1e-3
        np.testing.assert_allclose(b, c, atol=2e-6)


@pytest.mark.parametrize("accum_iters", [1, 5])
def test_the_example_equals_its_formula(adamw, accum_iters):
    gradients = np.random.RandomState(0).uniform(-1, 1, (3, accum_iters, 4))
    start = np.array([1.0, -1.0, 2.0, 3.0])
    variable = hosts.variable(start, "w")
    optimizer = adamw(learning_rate=2**-6, weight_decay=0.5, epsilon=1e-3, accum_iters=accum_iters)
    for gradient in gradients.reshape(-1, 4):
        hosts.apply(optimizer, [gradient.astype(hosts.FLOATX)], [variable])

    w, m, v = start, 0, 0
    for t, gradient in enumerate(gradients.mean(axis=1), 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        rate = 2**-6 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w = w - 2**-6 * 0.5 * w - rate * m / (np.sqrt(v) + 1e-3)
    assert np.abs(w - start).max() > 0.01
    # Not closer: TensorFlow's hosts take some of these numbers as float32.
    np.testing.assert_allclose(hosts.array(variable), w, rtol=0, atol=1e-6)
