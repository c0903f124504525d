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


# -- SigLIP ----------------------------------------------------------------------------------------

PIXELS = 4


def siglip():
    keras.utils.set_random_seed(3)
    sizes = {"hidden_dim": 4, "num_layers": 1, "num_heads": 1, "intermediate_dim": 8}
    return keras_hub.models.SigLIPBackbone(
        keras_hub.models.SigLIPVisionEncoder(
            patch_size=2, image_shape=(PIXELS, PIXELS, 3), **sizes
        ),
        keras_hub.models.SigLIPTextEncoder(
            vocabulary_size=WORDS, embedding_dim=4, max_sequence_length=STEPS, **sizes
        ),
    )


@keras.saving.register_keras_serializable("tests")
class Pairs(keras.layers.Layer):
    """The two embeddings of a sample in one row, with a temperature and a bias to be trained."""

    def build(self, shapes):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.bias = self.add_weight(shape=(), initializer="ones", name="bias")

    def call(self, image, text):
        image, text = keras.ops.normalize(image), keras.ops.normalize(text)
        bias = keras.ops.zeros_like(text[:, :1]) + self.bias
        return keras.ops.concatenate([image * keras.ops.exp(self.scale), text, bias], axis=-1)


def pairs():
    """The encoders of SigLIP in a model whose outputs belong to one sample each."""
    backbone = siglip()
    inputs = {v.name: v for v in keras.tree.flatten(backbone.input)}
    image = backbone.get_vision_embeddings(inputs["images"])
    text = backbone.get_text_embeddings(inputs["token_ids"])
    return keras.Model(inputs, Pairs(name="pairs")(image, text))


def contrast(y, rows):
    """SigLIP's loss: each sample's text against the images of the whole batch."""
    from keras_hub.src.models.siglip.siglip_loss import SigLIPLoss

    image, text, bias = keras.ops.split(rows, [4, 8], axis=-1)
    logits = keras.ops.matmul(text, keras.ops.transpose(image)) + bias
    return SigLIPLoss()(2 * keras.ops.eye(BIG) - 1, logits)


def images_and_texts():
    random = np.random.default_rng(6)
    images = random.normal(size=(SAMPLES, PIXELS, PIXELS, 3)).astype("float32")
    return {"images": images, "token_ids": random.integers(1, WORDS, (SAMPLES, STEPS))}


@pytest.mark.row(
    "keras-hub",
    'SigLIP\'s encoders and its contrastive loss, `MicroBatches(loss="batch")`',
    "equal to the big batch",
)
def test_contrastive_loss():
    """One batch: on PyTorch, Keras doesn't forget the gradients of variables of the same path."""
    x = {name: array[:BIG] for name, array in images_and_texts().items()}
    trained = []
    for callbacks in [], [hosts.accum.MicroBatches(MICRO, loss="batch")]:
        model = pairs()
        model.compile(keras.optimizers.SGD(0.002, momentum=0.9), contrast, **WITHOUT_XLA)
        start = model.get_weights()
        settings = {"verbose": 0, "shuffle": False, "callbacks": callbacks}
        model.fit(x, np.zeros((BIG, 1)), BIG, **settings)
        trained.append([hosts.array(v) for v in (*model.weights, *model.optimizer.variables)])
    assert max(np.abs(a - b).max() for a, b in zip(start, trained[0])) > 5e-3
    for found, value in zip(*trained):
        np.testing.assert_allclose(found, value, **TOLERANCE)


@pytest.mark.row(
    "keras-hub",
    "`MicroBatches` on `SigLIPBackbone` itself",
    "error: its own `compute_loss` calls the model on the whole batch",
)
def test_siglip_itself():
    model = siglip()
    model.compile()
    with pytest.raises(ValueError, match="compute_loss"):
        model.fit(
            images_and_texts(),
            batch_size=BIG,
            verbose=0,
            callbacks=[hosts.accum.MicroBatches(MICRO, loss="batch")],
        )
