"""tensorflow-addons, on TensorFlow 2.15: each optimizer, against itself at the big batch."""

import hosts
import numpy as np
import pytest
import training
from hosts import accum, keras
from training import BIG, LENGTH, MICRO, assert_equal, train

addons = pytest.importorskip("tensorflow_addons")

pytestmark = pytest.mark.thorough

RATE = {"learning_rate": 0.01}
RULES = {
    "AdaBelief": {"learning_rate": 0.1, "weight_decay": 0.01, "amsgrad": True},
    "AdamW": {**RATE, "weight_decay": 0.01},
    "COCOB": {},
    "ConditionalGradient": {"learning_rate": 0.9, "lambda_": 1.0},
    "LAMB": {**RATE, "weight_decay": 0.01},
    "LazyAdam": RATE,
    "NovoGrad": {**RATE, "weight_decay": 0.01},
    "ProximalAdagrad": {**RATE, "l1_regularization_strength": 0.01},
    "RectifiedAdam": {"learning_rate": 0.1, "total_steps": 8, "warmup_proportion": 0.3},
    "SGDW": {**RATE, "weight_decay": 0.01, "momentum": 0.9, "clipnorm": 0.1},
    "Yogi": {**RATE, "l1_regularization_strength": 0.01},
}
EXACT = {"rtol": 1e-9, "atol": 1e-12}
ROWS = np.random.default_rng(4).integers(0, 5, (training.SAMPLES, 5)), training.data()[1]


def trained(optimizer, batch_size, model=training.dense_model, arrays=None):
    return train(optimizer, batch_size, model, arrays=arrays)


@pytest.mark.row(
    "tensorflow-addons",
    "`accumulating` of AdaBelief, AdamW, COCOB, ConditionalGradient, LAMB, LazyAdam, NovoGrad, "
    "ProximalAdagrad, RectifiedAdam, SGDW, Yogi",
    "equal to the big batch, to 1e-9 in float64",
)
@pytest.mark.parametrize("name", RULES)
def test_each_rule(name):
    cls = getattr(addons.optimizers, name)
    expected = trained(cls(**RULES[name]), BIG)
    actual = trained(accum.accumulating(cls)(**RULES[name], accum_iters=LENGTH), MICRO)
    assert_equal(actual.weights, expected.weights, **EXACT)
    training.assert_moved(expected.start, expected.weights)


@pytest.mark.parametrize("name", RULES)
def test_saved_in_a_window(name, tmp_path):
    cls = getattr(addons.optimizers, name)
    made = accum.accumulating(cls)
    expected = training.compiled(training.dense_model(), made(**RULES[name], accum_iters=LENGTH))
    training.go_on(expected, stop=LENGTH + 1)
    expected.save(str(tmp_path / "model.h5"))
    loaded = keras.models.load_model(
        str(tmp_path / "model.h5"), custom_objects={made.__name__: made}
    )
    assert loaded.optimizer.window_position == 1
    for model in (expected, loaded):
        training.go_on(model, start=LENGTH + 1)
    assert_equal(training.weights(loaded), training.weights(expected), rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(set(RULES) - {"LazyAdam"}))
def test_an_embedding(name):
    """The reference has the big batch's dense gradient."""
    cls = getattr(addons.optimizers, name)
    model = lambda layer: lambda: training.embedding_model(layer)  # noqa: E731
    expected = trained(cls(**RULES[name]), BIG, model(training.DenseEmbedding), ROWS)
    ours = accum.accumulating(cls)(**RULES[name], accum_iters=LENGTH)
    actual = trained(ours, MICRO, model(keras.layers.Embedding), ROWS)
    assert_equal(actual.weights, expected.weights, **EXACT)


@pytest.mark.row(
    "tensorflow-addons", "`accumulating(LazyAdam)` with an embedding", "error, with the remedy"
)
def test_a_lazy_embedding():
    ours = accum.accumulating(addons.optimizers.LazyAdam)(accum_iters=LENGTH)
    with pytest.raises(TypeError, match="LazyAdam overrides `_resource_apply_sparse`"):
        trained(ours, MICRO, lambda: training.embedding_model(keras.layers.Embedding), ROWS)


@pytest.mark.row(
    "tensorflow-addons",
    "`extend_with_decoupled_weight_decay(AdamAccumulate)`",
    "equal to the big batch, to 1e-9 in float64",
)
def test_decoupled_weight_decay():
    extended = addons.optimizers.extend_with_decoupled_weight_decay(accum.AdamAccumulate)
    expected = trained(addons.optimizers.AdamW(**RULES["AdamW"]), BIG)
    actual = trained(extended(**RULES["AdamW"], accum_iters=LENGTH), MICRO)
    assert_equal(actual.weights, expected.weights, **EXACT)


WRAPPERS = "Lookahead", "MovingAverage", "MultiOptimizer", "SWA"


@pytest.mark.row(
    "tensorflow-addons",
    "`accumulating` of Lookahead, MovingAverage, MultiOptimizer, SWA, and these around our "
    "optimizers",
    "error",
)
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_are_refused(name):
    cls = getattr(addons.optimizers, name)
    with pytest.raises(TypeError, match="overrides `apply_gradients`, which may wrap"):
        accum.accumulating(cls)
    if name == "MultiOptimizer":
        return
    hosts.set_floatx("float32")  # SWA knows no other type
    wrapped = cls(accum.AdamAccumulate(accum_iters=LENGTH))
    with pytest.raises(RuntimeError, match="called from outside, as by an optimizer that wraps"):
        trained(wrapped, MICRO)
