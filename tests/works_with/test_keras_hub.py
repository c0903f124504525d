"""KerasHub: backbones and tasks with random weights, against the stock AdamW at the big batch."""

import hosts
import keras_hub
import numpy as np
import pytest
from hosts import keras
from training import BIG, EPOCHS, LENGTH, MICRO, WINDOWS, assert_equal, assert_moved, slots, weights

pytestmark = pytest.mark.thorough

WORDS, STEPS, SAMPLES = 11, 5, WINDOWS * BIG
RULE = {"learning_rate": 0.01, "weight_decay": 0.05}
# KerasHub computes its norms and rotations in float32 on every backend.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}
WITHOUT_XLA = {"jit_compile": False} if hosts.IS_TENSORFLOW else {}  # quicker to compile


@pytest.fixture(autouse=True)
def single():
    hosts.set_floatx("float32")


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


@pytest.mark.row(
    "keras-hub", "`GemmaBackbone` in a `GemmaCausalLM(preprocessor=None)`", "equal to the big batch"
)
def test_causal_lm():
    assert_equals_big_batch(causal_lm, sentences())


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


@pytest.mark.row(
    "keras-hub",
    "a `.keras` file inside a window",
    "continues; a task's file has no optimizer, so `set_state` after `compile`",
)
@pytest.mark.filterwarnings("ignore:.*was not called as part of model loading:UserWarning")
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")
def test_round_trip(tmp_path):
    x, y, sample_weight = sentences()

    def compiled(model):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(hosts.accum.AdamWAccumulate(accum_iters=LENGTH, **RULE), loss, **WITHOUT_XLA)
        return model

    def go_on(model, start, stop):
        for i in range(start * MICRO, stop * MICRO, MICRO):
            part = {name: value[i : i + MICRO] for name, value in x.items()}
            model.train_on_batch(part, y[i : i + MICRO], sample_weight[i : i + MICRO])
        return model

    stop, end = LENGTH + 2, 2 * LENGTH + 1
    model = go_on(compiled(causal_lm()), 0, stop)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "optimizer.npz", **model.optimizer.get_state())
    go_on(model, stop, end)

    loaded = compiled(keras.models.load_model(tmp_path / "model.keras"))
    loaded.optimizer.set_state(dict(np.load(tmp_path / "optimizer.npz")))
    go_on(loaded, stop, end)
    assert loaded.optimizer.completed_updates == end // LENGTH
    for found, value in zip(loaded.get_weights(), model.get_weights()):
        np.testing.assert_allclose(found, value, **TOLERANCE)


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
    "an error: the backbone's own `compute_loss` sees a slice",
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
