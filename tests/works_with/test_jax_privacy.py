"""JAX Privacy: `make_private` clips the gradient of each sample and adds noise to each batch."""

from types import SimpleNamespace

import hosts
import numpy as np
import pytest
from hosts import keras
from training import LENGTH, MICRO, SAMPLES, compiled, dense_model, fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(hosts.BACKEND != "jax", reason="JAX Privacy needs JAX"),
]

STEPS = SAMPLES // MICRO
NOISE = 2.0


@pytest.fixture(autouse=True)
def no_accountant(monkeypatch):
    """The budget of a training takes half a minute to compute, and isn't what is tested."""
    from jax_privacy import keras_api

    free = SimpleNamespace(compute_epsilon=lambda *arguments: 0.0)
    monkeypatch.setattr(keras_api.DPKerasConfig, "_accountant", free)


def private(optimizer, steps, noise):
    from jax_privacy import keras_api

    params = keras_api.DPKerasConfig(
        epsilon=1e3,
        delta=1e-3,
        clipping_norm=0.5,
        batch_size=MICRO,
        gradient_accumulation_steps=steps,
        train_steps=STEPS,
        train_size=SAMPLES,
        noise_multiplier=noise,
        seed=1,
    )
    return keras_api.make_private(compiled(dense_model(), optimizer), params)


def trained(*arguments):
    model = private(*arguments)
    fit(model, MICRO, epochs=1)
    return model


@pytest.mark.row(
    "jax-privacy",
    "`make_private` with `gradient_accumulation_steps=1`",
    "each micro-batch gets its own noise: private, with more noise than you need, see below; "
    "`fit` warns of the model's own generator",
)
def test_each_micro_batch_has_its_noise():
    """Keras's own accumulation has the same noise if its multiplier is greater by sqrt(k)."""
    own = keras.optimizers.SGD(0.1, gradient_accumulation_steps=LENGTH)
    expected = trained(own, LENGTH, NOISE * LENGTH**0.5)
    with pytest.warns(hosts.accum.AccumulationWarning, match="Layers keep values.*: model"):
        actual = trained(hosts.ours("SGD", learning_rate=0.1, accum_iters=LENGTH), 1, NOISE)
    assert actual.optimizer.completed_updates == STEPS // LENGTH
    start, ours, theirs = (
        [hosts.array(v) for v in model.trainable_variables]
        for model in (compiled(dense_model(), "sgd"), actual, expected)
    )
    assert max(np.abs(a - b).max() for a, b in zip(ours, start)) > 0.05
    for found, value in zip(ours, theirs):
        np.testing.assert_allclose(found, value, **hosts.TOLERANCE)


@pytest.mark.row(
    "jax-privacy",
    "`make_private` with `gradient_accumulation_steps` above 1",
    "error in `fit`: it asks for Keras's own accumulation, see below",
)
def test_steps_are_refused():
    ours = hosts.ours("SGD", learning_rate=0.1, accum_iters=LENGTH)
    with pytest.raises(ValueError, match="gradient_accumulation_steps = 1 must be equal"):
        trained(ours, LENGTH, NOISE)
