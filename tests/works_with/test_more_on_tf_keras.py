"""Further packages for tf_keras: equations, Gaussian processes, attacks, quantizers and images."""

import hosts
import numpy as np
import pytest
import training
from against_stock import RATE, assert_equals_big_batch
from hosts import keras
from training import BIG, EPOCHS, LENGTH, SAMPLES, WINDOWS, compiled, data, fit, initialize

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="tf_keras alone"),
]


def length(optimizer):
    return LENGTH if training.is_ours(optimizer) else 1


def pair(name):
    """The newer style, which these packages ask for."""
    cls = getattr(keras.optimizers, name)
    accumulating = hosts.accum.accumulating(cls)
    return lambda: cls(RATE), lambda: accumulating(RATE, accum_iters=LENGTH)


@pytest.mark.row(
    "deepxde",
    "`accumulating(keras.optimizers.Adam)`, and `accum_iters` times `iterations`",
    "equal to the big batch; `iterations` and its callbacks count micro-batches",
)
def test_deepxde(monkeypatch):
    """The guess: equal, and all of its own counters count micro-batches."""
    monkeypatch.setenv("DDE_BACKEND", "tensorflow")
    import deepxde

    x, y = (array.astype("float32") for array in data())

    class InOrder(deepxde.data.DataSet):
        """Batches in the order of the arrays. The first one is only for a test."""

        def train_next_batch(self, batch_size=None):
            at = getattr(self, "at", SAMPLES - batch_size)
            self.at = (at + batch_size) % SAMPLES
            return self.train_x[at : at + batch_size], self.train_y[at : at + batch_size]

    def train(optimizer, batch_size):
        network = deepxde.nn.FNN([3, 4, 2], "tanh", "Glorot uniform")
        arrays = InOrder(X_train=x, y_train=y, X_test=x, y_test=y, standardize=False)
        model = deepxde.Model(arrays, network)
        model.compile(optimizer, loss="MSE", verbose=0)
        network(x)
        initialize(network)
        counted, seen = [], deepxde.callbacks.Callback()
        seen.on_batch_end = lambda: counted.append(1)
        updates = EPOCHS * WINDOWS
        model.train(
            iterations=updates * length(optimizer), batch_size=batch_size, display_every=1000,
            callbacks=[seen], verbose=0,
        )  # fmt: skip
        assert len(counted) == updates * length(optimizer)
        return {str(i): w for i, w in enumerate(network.get_weights())}

    assert_equals_big_batch(train, optimizers=pair("Adam"))


@pytest.mark.row(
    "gpflow",
    "`SVGP`, `optimizer.minimize(model.training_loss_closure(batches), ...)`",
    "equal to the big batch; the KL counts once per window",
)
def test_gpflow():
    """The guess: equal, as each batch's likelihood is scaled to all of the data."""
    import gpflow

    x, y = (array.astype("float64") for array in data())

    def train(optimizer, batch_size):
        model = gpflow.models.SVGP(
            gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(), x[:4],
            num_data=SAMPLES, num_latent_gps=2,
        )  # fmt: skip
        batches = hosts.tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size).repeat()
        loss = model.training_loss_closure(iter(batches), compile=True)
        for _ in range(WINDOWS * BIG // batch_size):
            optimizer.minimize(loss, model.trainable_variables)
        return {str(i): v.numpy() for i, v in enumerate(model.trainable_variables)}

    assert_equals_big_batch(train, optimizers=pair("Adam"))


@pytest.mark.row(
    "adversarial-robustness-toolbox",
    "`TensorFlowV2Classifier.fit`",
    "equal to the big batch, with batches of one size",
)
def test_art():
    """The guess: equal for batches of one size."""
    from art.estimators.classification import TensorFlowV2Classifier

    labels = np.eye(2)[np.arange(SAMPLES) * 3 % 7 % 2]

    def train(optimizer, batch_size):
        model = initialize(training.dense_model())
        classifier = TensorFlowV2Classifier(
            model, nb_classes=2, input_shape=(3,), optimizer=optimizer,
            loss_object=keras.losses.CategoricalCrossentropy(from_logits=True),
        )  # fmt: skip
        hosts.tf.random.set_seed(1)  # it shuffles
        classifier.fit(data()[0], labels, batch_size=batch_size, nb_epochs=1)
        return training.weights(model)

    assert_equals_big_batch(train)


@pytest.mark.row("qkeras", "`QDense` and `QActivation`", "equal to the big batch")
def test_qkeras():
    """The guess: equal, since `quantized_bits` keeps nothing."""
    import qkeras

    def train(optimizer, batch_size):
        bits = {
            "kernel_quantizer": "quantized_bits(4, 0, 1)",
            "bias_quantizer": "quantized_bits(4)",
        }
        layers = [
            qkeras.QDense(4, name="hidden", **bits),
            qkeras.QActivation("quantized_tanh(6)"),
            qkeras.QDense(2, name="out", **bits),
        ]
        model = compiled(hosts.sequential((3,), layers), optimizer)
        fit(model, batch_size)
        return model

    assert_equals_big_batch(train)


@pytest.mark.row(
    "keras-cv-attention-models", "`beit.ViT` with random weights", "equal to the big batch"
)
def test_kecam():
    """The guess: equal without dropout, since its norms are of layers."""
    from keras_cv_attention_models import beit

    images = np.random.default_rng(3).normal(size=(SAMPLES, 8, 8, 3)).astype("float32")

    def train(optimizer, batch_size):
        network = beit.ViT(
            depth=1, embed_dim=4, num_heads=2, patch_size=4, input_shape=(8, 8, 3), num_classes=2,
            classifier_activation=None, pretrained=None,
        )  # fmt: skip
        model = compiled(network, optimizer)
        fit(model, batch_size, (images, data()[1]))
        return training.weights(model)

    # The gradient of a bias of keys is rounding.
    assert_equals_big_batch(train, atol=1e-5, kept=["qkv/bias"])
