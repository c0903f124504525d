"""Further packages for Keras 3: detection, federated rounds, progress bars, NNX."""

import os
import subprocess
import sys

import hosts
import numpy as np
import pytest
import training
from against_stock import assert_equals_big_batch, distance, ours, run, stock
from hosts import keras
from training import BIG, EPOCHS, LENGTH, MICRO, SAMPLES, compiled, data, dense_model, fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(hosts.BACKEND != "jax", reason="one backend is enough, and NNX is JAX's"),
]

IMAGES = np.random.default_rng(3).normal(size=(SAMPLES, 32, 32, 3)).astype("float32")


def detector(optimizer, batch_size):
    import keras_hub

    image_encoder = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64, 64],
        stackwise_num_blocks=[1, 1, 1],
        stackwise_num_strides=[1, 2, 2],
        block_type="basic_block",
        use_pre_activation=True,
        image_shape=(32, 32, 3),
    )
    for layer in image_encoder.layers:  # frozen, with what it normalizes by
        layer.trainable = False
    backbone = keras_hub.models.RetinaNetBackbone(
        image_encoder, min_level=3, max_level=4, use_p5=False, image_shape=(32, 32, 3)
    )
    model = keras_hub.models.RetinaNetObjectDetector(
        backbone, num_classes=2, bounding_box_format="xyxy", pre_logits_num_conv_layers=1
    )
    model.compile(
        optimizer,
        box_loss=keras.losses.Huber(reduction="sum"),
        classification_loss=keras.losses.BinaryFocalCrossentropy(from_logits=True, reduction="sum"),
    )
    sides = 6 + np.arange(SAMPLES) % 8 * 3
    boxes = np.stack([0 * sides + 2, 0 * sides + 2, sides + 2, sides + 2], -1)[:, None]
    y = {"boxes": boxes.astype("float32"), "labels": (np.arange(SAMPLES) % 2)[:, None]}
    fit(model, batch_size, (IMAGES, y), epochs=1)
    return model


@pytest.mark.row(
    "keras-hub",
    "`RetinaNetObjectDetector`",
    "not equal, as it divides by the anchors with an object in the batch; `fit` warns",
)
def test_detector():
    """The guess: not equal, and nothing is said. `fit` warns of its own `compute_loss`."""
    with pytest.warns(hosts.accum.AccumulationWarning, match="the model's own `compute_loss`"):
        actual = run(detector, ours, MICRO)
    assert distance(actual, run(detector, stock, BIG)) > 1e-3


@pytest.mark.row(
    "flwr",
    "a `NumPyClient` whose rounds end in a window, and `ApplyPartialWindow`",
    "equal to the big batch with a short last one",
)
def test_flower():
    """The guess: not equal without the callback, as an open window crosses the rounds."""
    import flwr

    class Client(flwr.client.NumPyClient):
        def __init__(self, optimizer, batch_size):
            self.model, self.batch_size = compiled(dense_model(), optimizer), batch_size

        def fit(self, parameters, config):
            self.model.set_weights(parameters)
            mine = training.is_ours(self.model.optimizer)
            callbacks = [hosts.accum.ApplyPartialWindow()] if mine else []
            arrays = [array[: SAMPLES - MICRO] for array in data()]
            fit(self.model, self.batch_size, arrays, epochs=1, callbacks=callbacks)
            return self.model.get_weights(), len(arrays[0]), {}

    def train(optimizer, batch_size):
        client = Client(optimizer, batch_size)
        parameters = client.model.get_weights()
        for _ in range(EPOCHS):
            parameters, _, _ = client.fit(parameters, {})
        return client.model

    assert_equals_big_batch(train)


@pytest.mark.row(
    "tqdm",
    "`TqdmCallback(verbose=2)`, and the same in `OnUpdates`",
    "the bar counts micro-batches, and in `OnUpdates` updates, without a total",
)
def test_tqdm():
    """The guess: in `OnUpdates` the total stays that of micro-batches."""
    from tqdm.keras import TqdmCallback

    bars = []
    for wrap in (lambda callback: callback, lambda callback: hosts.accum.OnUpdates([callback])):
        callback = TqdmCallback(verbose=2)
        fit(compiled(dense_model(), ours()), MICRO, epochs=1, callbacks=[wrap(callback)])
        bars.append((callback.batch_bar.n, callback.batch_bar.total))
    batches = SAMPLES // MICRO
    assert bars == [(batches, batches), (batches // LENGTH, None)]


NNX = """
import warnings
import keras
import numpy as np
from keras_accum import AdamAccumulate

def train(optimizer, batch_size):
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(1)
    x, y = random.normal(size=(SAMPLES, 3)), random.normal(size=(SAMPLES, 2))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=batch_size, shuffle=False, epochs=2, verbose=0)
    return model.get_weights()

expected = train(keras.optimizers.Adam(0.05), 8)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    actual = train(AdamAccumulate(0.05, accum_iters=4), 2)
print(any("NNX mode" in str(w.message) for w in warned))
print(max(abs(a - b).max() for a, b in zip(actual, expected)))
"""


@pytest.mark.row(
    "flax",
    "Keras's NNX mode (`KERAS_NNX_ENABLED`)",
    "equal for batches of one size; a short batch counts as much as a full one, with a warning",
)
@pytest.mark.parametrize("samples", [24, 23])
def test_nnx(samples):
    """The guess: equal for batches of one size, with a warning; else each batch counts the same."""
    settings = {**os.environ, "KERAS_NNX_ENABLED": "true", "KERAS_BACKEND": "jax"}
    program = NNX.replace("SAMPLES", str(samples))
    found = subprocess.run(
        [sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=False
    )
    assert not found.returncode, found.stderr
    warned, apart = found.stdout.split()
    assert warned == "True"
    assert (float(apart) < 1e-6) == (samples % MICRO == 0)
