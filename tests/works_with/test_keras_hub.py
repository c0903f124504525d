"""KerasHub: backbones and tasks with random weights, against the stock AdamW at the big batch."""

import hosts
import keras_hub
import numpy as np
import pytest
from hosts import keras
from training import BIG, LENGTH, MICRO, WINDOWS, assert_equal, assert_moved, train

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
    return model


def sentences(lengths=None):
    """Tokens to predict: the next ones. Padding counts nothing in the loss."""
    random = np.random.default_rng(5)
    tokens = random.integers(1, WORDS, (SAMPLES, STEPS + 1))
    lengths = np.full(SAMPLES, STEPS) if lengths is None else lengths
    steps = np.arange(STEPS) < lengths[:, None]
    x = {"token_ids": tokens[:, :-1] * steps, "padding_mask": steps.astype("int32")}
    return x, tokens[:, 1:], steps.astype("float32")


def assert_equals_big_batch(
    build, arrays, callbacks=(), loss_reduction="sum_over_batch_size", **ours
):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=loss_reduction)
    settings = {"build": build, "arrays": arrays[:2], "sample_weight": arrays[2]}
    settings["compile"] = {"loss": loss, **WITHOUT_XLA}
    expected = train(keras.optimizers.AdamW(**RULE), BIG, **settings)
    accumulating = hosts.accum.AdamWAccumulate(accum_iters=LENGTH, **RULE, **ours)
    actual = train(accumulating, MICRO, callbacks=callbacks, **settings)
    assert_equal(actual.start, expected.start, rtol=0, atol=0)
    assert_equal(actual.weights, expected.weights, **TOLERANCE)
    assert_equal(actual.slots, expected.slots, **TOLERANCE)
    moved = {name: w for name, w in actual.weights.items() if (w != actual.start[name]).any()}
    assert_moved(actual.start, moved, by=5e-3)
    assert 2 * len(moved) + 1 == len(expected.slots)  # every trainable weight has two slots
    return len(moved), len(actual.weights)


@pytest.mark.row("keras-hub", "`enable_lora` before `compile`", "equal to the big batch")
def test_lora():
    moved, weights = assert_equals_big_batch(lora, sentences())
    assert 0 < moved < weights


@pytest.mark.row("keras-hub", "padded sequences, weighted", "equal to the big batch")
def test_padded():
    lengths = 1 + np.arange(SAMPLES) % BIG * STEPS // BIG  # first micro-batches are the shortest
    padded = sentences(lengths)
    assert len({part.sum() for part in padded[2].reshape(-1, MICRO, STEPS)}) > 2
    assert_equals_big_batch(
        causal_lm,
        padded,
        loss_reduction="mean_with_sample_weight",
        reduction="weighted",
    )
