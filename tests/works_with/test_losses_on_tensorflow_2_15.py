"""Losses of other packages on TensorFlow 2.15: what is each of them divided by?"""

import hosts
import numpy as np
import pytest
from against_stock import assert_equals_big_batch, distance, ours, run, stock
from hosts import keras
from training import BIG, MICRO, SAMPLES, compiled, data, fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="TensorFlow 2.15 alone"),
]

RANDOM = np.random.default_rng(11)


def trained(build, loss, arrays):
    def train(optimizer, batch_size):
        model = compiled(build(), optimizer, loss)
        fit(model, batch_size, arrays)
        return model

    return train


def assert_warns_and_differs(train, by):
    with pytest.warns(hosts.accum.AccumulationWarning, match="can't read what the loss"):
        actual = run(train, ours, MICRO)
    assert distance(actual, run(train, stock, BIG)) > by


# -- images ----------------------------------------------------------------------------------------

IMAGES = RANDOM.normal(size=(SAMPLES, 4, 4, 3)).astype("float32")
MASKS = (
    RANDOM.uniform(size=(SAMPLES, 4, 4, 1)) < np.linspace(0.1, 0.9, SAMPLES)[:, None, None, None]
)
MASKS = MASKS.astype("float32")


def segmenter():
    layer = keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")
    return hosts.sequential((4, 4, 3), [layer])


def dice(**arguments):
    import os

    os.environ["SM_FRAMEWORK"] = "tf.keras"
    import segmentation_models

    return trained(segmenter, segmentation_models.losses.DiceLoss(**arguments), (IMAGES, MASKS))


@pytest.mark.row(
    "segmentation-models",
    "`DiceLoss()`",
    "not equal, as it divides by all masks of the batch; `fit` warns",
)
def test_dice():
    """The guess: not equal, and nothing is said. `fit` warns."""
    assert_warns_and_differs(dice(), by=1e-3)


@pytest.mark.row(
    "segmentation-models",
    "`DiceLoss(per_image=True)`",
    "equal to the big batch, with a warning: it returns one number",
)
def test_dice_per_image():
    """The guess: equal."""
    assert_equals_big_batch(dice(per_image=True), says="returns one number")


def star_network(optimizer, batch_size):
    from stardist.models import Config2D, StarDist2D

    config = Config2D(
        n_rays=4,
        grid=(1, 1),
        unet_n_depth=1,
        unet_n_filter_base=2,
        net_conv_after_unet=2,
        n_channel_in=3,
    )
    model = StarDist2D(config, name=None, basedir=None)
    model.prepare_for_training(optimizer)
    distances = np.concatenate([IMAGES.mean(-1, keepdims=True) + i for i in (3, 4, 5, 6)], -1)
    fit(model.keras_model, batch_size, (IMAGES, [MASKS, np.concatenate([distances, MASKS], -1)]))
    return model.keras_model


@pytest.mark.row(
    "stardist",
    "`StarDist2D` with its own losses",
    "not equal, as it divides by the pixels of objects in the batch; `fit` warns",
)
def test_stardist():
    """The guess: not equal, and nothing is said of the loss of distances. `fit` warns."""
    assert_warns_and_differs(star_network, by=1e-3)


# -- spectra, stars, lists and sequences -----------------------------------------------------------


@pytest.mark.row(
    "dlomix",
    "`masked_spectral_distance`",
    "equal to the big batch",
)
def test_dlomix():
    """The guess: equal: an angle per spectrum, and -1 for peaks that can't be are within it."""
    from dlomix.losses import masked_spectral_distance

    spectra = np.where(
        RANDOM.uniform(size=(SAMPLES, 6)) < 0.3, -1, RANDOM.uniform(size=(SAMPLES, 6))
    )

    def build():
        return hosts.sequential((3,), [keras.layers.Dense(6, "sigmoid")])

    assert_equals_big_batch(
        trained(build, masked_spectral_distance, (data()[0], spectra.astype("float32"))), atol=3e-5
    )


@pytest.mark.row(
    "astroNN",
    "`mean_squared_error` and `mean_absolute_error` with missing labels",
    "equal to the big batch",
)
@pytest.mark.parametrize("name", ["mean_squared_error", "mean_absolute_error"])
def test_astro(name):
    """The guess: equal, since labels that are missing are made up for within a sample."""
    from astroNN.nn import losses

    labels = np.where(
        RANDOM.uniform(size=(SAMPLES, 3)) < 0.3, -9999, RANDOM.uniform(1, 2, (SAMPLES, 3))
    )

    def build():
        return hosts.sequential((3,), [keras.layers.Dense(3)])

    train = trained(build, getattr(losses, name), (data()[0], labels.astype("float32")))
    assert_equals_big_batch(train)


RELEVANCE = RANDOM.integers(0, 3, (SAMPLES, 5)).astype("float32")
RELEVANCE[RANDOM.uniform(size=RELEVANCE.shape) < 0.2] = -1  # padding


@pytest.mark.row(
    "tensorflow-ranking",
    "losses by list and by pair, with padded lists of one length",
    "equal to the big batch, with a warning: they have a `__call__` of their own",
)
@pytest.mark.parametrize(
    "name",
    ["SoftmaxLoss", "ApproxNDCGLoss", "UniqueSoftmaxLoss"]
    + ["PairwiseHingeLoss", "PairwiseLogisticLoss", "MeanSquaredLoss", "SigmoidCrossEntropyLoss"],
)
def test_ranking(name):
    """The guess: the last four aren't equal. They divide by pairs or items with the padded ones."""
    import tensorflow_ranking as tfr

    def build():
        return hosts.sequential((3,), [keras.layers.Dense(4, "tanh"), keras.layers.Dense(5)])

    loss = getattr(tfr.keras.losses, name)()
    train = trained(build, loss, (data()[0], RELEVANCE))
    assert_equals_big_batch(train, atol=3e-6, says="has a `__call__` of its own")


@pytest.mark.row(
    "keras-self-attention",
    "`SeqSelfAttention` with `attention_regularizer_weight`",
    "equal to the big batch",
)
def test_self_attention():
    """The guess: equal, as its penalty of the attention is divided by the batch's size."""
    from keras_self_attention import SeqSelfAttention

    def build():
        attention = SeqSelfAttention(4, use_attention_bias=False, attention_regularizer_weight=0.1)
        return hosts.sequential((5, 3), [attention, keras.layers.Flatten(), keras.layers.Dense(2)])

    x = RANDOM.normal(size=(SAMPLES, 5, 3)).astype("float32")
    assert_equals_big_batch(trained(build, "mse", (x, data()[1])))
