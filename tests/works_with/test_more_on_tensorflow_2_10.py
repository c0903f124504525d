"""Packages of 2019 to 2023 for the Keras of TensorFlow 2.10: averages, warm-up, losses."""

import sys
import types

import hosts
import numpy as np
import pytest
from against_stock import RATE, assert_equals_big_batch, distance, ours, run, stock
from hosts import accum, keras, tf
from training import (
    BIG,
    LENGTH,
    MICRO,
    SAMPLES,
    UPDATES,
    compiled,
    data,
    dense_model,
    fit,
    weights,
)

try:
    from importlib.metadata import distribution
except ImportError:  # Python 3.7
    from importlib_metadata import distribution

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="TensorFlow 2.10 alone"),
]


@pytest.mark.row(
    "keras-swa", "`SWA`, also with `lr_schedule=\"cyclic\"`, which sets the rate in each "
    "micro-batch", "equal to the big batch if `accum_iters` divides the number of its batches: a "
    "window's last micro-batch has the big batch's rate",
)  # fmt: skip
@pytest.mark.parametrize("schedule", ["constant", "cyclic"])
@pytest.mark.usefixtures("float32")
def test_swa(schedule):
    """The guess: not equal with the cycle, as it goes by micro-batches."""
    from swa.tfkeras import SWA

    cycle = {"swa_lr2": 0.04, "swa_freq": 2} if schedule == "cyclic" else {}

    def trained(optimizer, batch_size):
        model = compiled(dense_model(), optimizer)
        average = SWA(start_epoch=2, lr_schedule=schedule, swa_lr=0.01, **cycle)
        fit(model, batch_size, epochs=5, callbacks=[average])
        return model

    assert_equals_big_batch(trained)


@pytest.mark.row(
    "keras-bert", "`accumulating(AdamWarmup)`, also with weight decay and AMSGrad", "equal to the "
    "big batch, to 1e-9 in float64: its steps are updates",
)  # fmt: skip
@pytest.mark.parametrize("more", [{}, {"weight_decay": 0.01, "amsgrad": True, "min_lr": 1e-3}])
def test_warmup(more):
    """The guess: equal."""
    from keras_bert.optimizers.warmup_v2 import AdamWarmup

    steps = {"decay_steps": UPDATES, "warmup_steps": 3, "learning_rate": RATE, **more}

    def trained(optimizer, batch_size):
        model = compiled(dense_model(), optimizer)
        fit(model, batch_size)
        return model

    pair = (
        lambda: AdamWarmup(**steps),
        lambda: accum.accumulating(AdamWarmup)(accum_iters=LENGTH, **steps),
    )
    assert_equals_big_batch(trained, atol=1e-9, optimizers=pair)


def centralize(gradients_and_weights):
    return [
        (g - tf.reduce_mean(g, axis=list(range(len(g.shape) - 1)), keepdims=True), w)
        if len(g.shape) > 1
        else (g, w)
        for g, w in gradients_and_weights
    ]


@pytest.mark.row(
    "gradient-centralization-tf", "`get_gradients = centralized_gradients_for_optimizer(...)`",
    "does nothing in `fit`, nor with a stock optimizer, silently "
    "([shown](../findings/gctf_no_effect.sh)): write a function for `gradient_transformers`, "
    "which is equal to the big batch",
)  # fmt: skip
def test_centralized():
    """The guess: equal, as it is linear."""
    import gctf

    def trained(optimizer, batch_size):
        model = compiled(dense_model(), optimizer, run_eagerly=False)
        fit(model, batch_size)
        return model

    def with_gctf():
        optimizer = ours()
        optimizer.get_gradients = gctf.centralized_gradients_for_optimizer(optimizer)
        return optimizer

    pair = (
        lambda: hosts.stock("Adam", learning_rate=RATE, gradient_transformers=[centralize]),
        lambda: ours(gradient_transformers=[centralize]),
    )
    expected = run(trained, ours, MICRO)
    assert distance(run(trained, with_gctf, MICRO), expected) == 0
    actual = assert_equals_big_batch(trained, atol=1e-9, optimizers=pair)
    assert distance(actual, expected) > 1e-3


@pytest.fixture
def similarity():
    """Import it without its plots and its index, which need many packages."""
    name = "tensorflow_similarity"
    if name not in sys.modules:
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(distribution("tensorflow-similarity").locate_file(name))]
    from tensorflow_similarity import losses

    return losses


COMPARING = (
    *("TripletLoss", "MultiSimilarityLoss", "CircleLoss", "PNLoss"),
    "SoftNearestNeighborLoss",
)


def trained_by(loss, arrays):
    def trained(optimizer, batch_size):
        keras.utils.set_random_seed(1)
        model = compiled(dense_model(), optimizer, loss)
        fit(model, batch_size, arrays)
        return weights(model)

    return trained


@pytest.mark.row(
    "tensorflow-similarity", "`TripletLoss`, `MultiSimilarityLoss`, `CircleLoss`, `PNLoss`, "
    "`SoftNearestNeighborLoss`", "not equal, as they compare the batch's samples, silently: make "
    "the micro-batches large, with several samples of each class",
)  # fmt: skip
@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.usefixtures("float32")
def test_similarity(similarity, name):
    """The guess: not equal, and nothing is said."""
    loss = getattr(similarity, name)()
    trained = trained_by(loss, (data()[0], np.arange(SAMPLES) % 2))
    assert distance(run(trained, ours, MICRO), run(trained, stock, BIG)) > 1e-3


@pytest.mark.row("tensorflow-similarity", "`SimSiamLoss`", "equal to the big batch")
@pytest.mark.usefixtures("float32")
def test_simsiam(similarity):
    """The guess: equal."""
    assert_equals_big_batch(trained_by(similarity.SimSiamLoss(), data()), atol=1e-5)


def images():
    random = np.random.default_rng(6)
    brightness = np.linspace(0.3, 1, SAMPLES)[:, None, None, None]
    return (brightness * random.uniform(size=(2, SAMPLES, 6, 6, 1))).astype("float32")


def on_images(loss, y):
    def trained(optimizer, batch_size):
        keras.utils.set_random_seed(1)
        layers = [
            keras.layers.Conv2D(3, 3, padding="same", activation="tanh", name="first"),
            keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid", name="out"),
        ]
        model = hosts.sequential((6, 6, 1), layers)
        model.compile(optimizer, loss)
        fit(model, batch_size, (images()[0], y))
        return weights(model)

    return trained


@pytest.fixture
def voxelmorph(monkeypatch):
    monkeypatch.setenv("VXM_BACKEND", "tensorflow")
    monkeypatch.setenv("NEURITE_BACKEND", "tensorflow")
    import voxelmorph

    return voxelmorph.losses


@pytest.mark.row(
    "voxelmorph", "`MutualInformation().loss`", "not equal, as its bins are the batch's, silently "
    "([shown](../findings/voxelmorph_bins.sh)): call it for each pair by `tf.map_fn`, which is "
    "equal to the big batch",
)  # fmt: skip
@pytest.mark.usefixtures("float32")
def test_mutual_information(voxelmorph):
    """The guess: equal, as it returns a value for each pair."""
    loss = voxelmorph.MutualInformation().loss
    y = images()[1]

    def one(pair):
        return loss(pair[0][None], pair[1][None])[0]

    def apart(y_true, y_pred):
        return tf.map_fn(one, (y_true, y_pred), fn_output_signature=tf.float32)

    trained = on_images(loss, y)
    assert distance(run(trained, ours, MICRO), run(trained, stock, BIG)) > 1e-2
    assert_equals_big_batch(on_images(apart, y), atol=2e-5)


@pytest.mark.row(
    "voxelmorph", "`NCC().loss`, `MSE().loss` and `Dice().loss`", "equal to the big batch; MSE and "
    "Dice with a warning, as each returns one number",
)  # fmt: skip
@pytest.mark.parametrize(
    ("name", "arguments"), [("NCC", {"win": [3, 3]}), ("MSE", {}), ("Dice", {})]
)
@pytest.mark.usefixtures("float32")
def test_voxelmorph(voxelmorph, name, arguments):
    """The guess: equal, each with a warning."""
    loss = getattr(voxelmorph, name)(**arguments).loss
    says = None if name == "NCC" else "it returns one number"
    assert_equals_big_batch(on_images(loss, images()[1]), atol=5e-5, says=says)


@pytest.mark.row(
    "n2v", "`loss_mse()` and `loss_mae()`", "equal to the big batch, with a warning, if each patch "
    "has as many masked pixels, as its generator gives them",
)  # fmt: skip
@pytest.mark.parametrize("name", ["loss_mse", "loss_mae"])
@pytest.mark.usefixtures("float32")
def test_n2v(name):
    """The guess: equal."""
    from n2v.internals import n2v_losses

    random = np.random.default_rng(7)
    masked = np.zeros((SAMPLES, 36), "float32")
    for row in masked:
        row[random.choice(36, 4, replace=False)] = 1
    y = np.concatenate([images()[1], masked.reshape(SAMPLES, 6, 6, 1)], -1)
    trained = on_images(getattr(n2v_losses, name)(), y)
    assert_equals_big_batch(trained, atol=1e-5, says="it returns one number")
