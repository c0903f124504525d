"""KerasHub: backbones and tasks with random weights, against the stock AdamW at the big batch."""

import hosts
import keras_hub
import numpy as np
import pytest
from hosts import keras
from training import BIG, EPOCHS, LENGTH, MICRO, WINDOWS, assert_equal, assert_moved, slots, weights

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("float32")]

WORDS, STEPS, SAMPLES = 11, 5, WINDOWS * BIG
RULE = {"learning_rate": 0.01, "weight_decay": 0.05}
# KerasHub computes its norms and rotations in float32 on every backend.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}
WITHOUT_XLA = {"jit_compile": False} if hosts.IS_TENSORFLOW else {}  # quicker to compile


def backbone():
    keras.utils.set_random_seed(3)
    return keras_hub.models.GemmaBackbone(
        vocabulary_size=WORDS,
        num_layers=1,
        num_query_heads=2,
        num_key_value_heads=1,
        hidden_dim=8,
        intermediate_dim=16,
        head_dim=4,
    )


def causal_lm():
    return keras_hub.models.GemmaCausalLM(backbone(), preprocessor=None)


def lora():
    model = causal_lm()
    model.backbone.enable_lora(rank=2)
    # The second factor starts at 0, so that the first one has no gradient in the first window.
    for variable in model.trainable_variables:
        variable.assign(np.random.default_rng(4).normal(0, 0.3, variable.shape))
    return model


def sentences(lengths=None):
    """Tokens to predict: the next ones. Padding counts nothing in the loss."""
    random = np.random.default_rng(5)
    tokens = random.integers(1, WORDS, (SAMPLES, STEPS + 1))
    lengths = np.full(SAMPLES, STEPS) if lengths is None else lengths
    steps = np.arange(STEPS) < lengths[:, None]
    x = {"token_ids": tokens[:, :-1] * steps, "padding_mask": steps.astype("int32")}
    return x, tokens[:, 1:], steps.astype("float32")


def fitted(build, optimizer, size, arrays, loss, callbacks=()):
    model = build()
    model.compile(optimizer, loss, **WITHOUT_XLA)
    start = weights(model)
    x, y, sample_weight = arrays
    settings = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": [*callbacks]}
    model.fit(x, y, size, sample_weight=sample_weight, **settings)
    return start, model


def assert_equals_big_batch(
    build, arrays, callbacks=(), loss_reduction="sum_over_batch_size", **ours
):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=loss_reduction)
    start, expected = fitted(build, keras.optimizers.AdamW(**RULE), BIG, arrays, loss)
    accumulating = hosts.accum.AdamWAccumulate(accum_iters=LENGTH, **RULE, **ours)
    same, actual = fitted(build, accumulating, MICRO, arrays, loss, callbacks)
    assert_equal(same, start, rtol=0, atol=0)
    moved = {v.path: hosts.array(v) for v in expected.trainable_variables}
    assert_moved(start, moved, by=5e-3)
    assert_equal(weights(actual), weights(expected), **TOLERANCE)
    assert_equal(slots(actual), slots(expected), **TOLERANCE)
    return actual


@pytest.mark.row("keras-hub", "`enable_lora` before `compile`", "equal to the big batch")
def test_lora():
    model = assert_equals_big_batch(lora, sentences())
    assert 0 < len(model.optimizer._trainable_variables) < len(model.variables)


@pytest.mark.row("keras-hub", "padded sequences, `MicroBatchWeights`", "equal to the big batch")
def test_padded():
    lengths = 1 + np.arange(SAMPLES) % BIG * STEPS // BIG  # first micro-batches are the shortest
    padded = sentences(lengths)
    assert len({part.sum() for part in padded[2].reshape(-1, MICRO, STEPS)}) > 2
    assert_equals_big_batch(
        causal_lm,
        padded,
        callbacks=[hosts.accum.MicroBatchWeights()],
        loss_reduction="mean_with_sample_weight",
        reduction="weighted",
    )
