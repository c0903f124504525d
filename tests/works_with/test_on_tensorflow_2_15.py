"""Packages for the Keras of TensorFlow 2.15, in the session of tensorflow-addons."""

import hosts
import numpy as np
import pytest
import training
from against_stock import RATE, assert_equals_big_batch
from hosts import keras
from training import EPOCHS, LENGTH, SAMPLES, compiled, data, fit, initialize

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="TensorFlow 2.15 alone"),
]


@pytest.mark.row(
    "neural-structured-learning", "`AdversarialRegularization`", "equal to the big batch"
)
def test_adversarial():
    """The guess: equal, since each sample is perturbed by its own gradient's norm."""
    import neural_structured_learning as nsl

    def train(optimizer, batch_size):
        config = nsl.configs.make_adv_reg_config(multiplier=0.5, adv_step_size=0.1)
        base = initialize(training.dense_model())
        model = nsl.keras.AdversarialRegularization(base, label_keys=["y"], adv_config=config)
        model.compile(optimizer, keras.losses.MeanSquaredError())
        x, y = data()
        arrays = {base.input_names[0]: x, "y": y}
        batches = hosts.tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)
        model.fit(batches, epochs=EPOCHS, verbose=0)
        return model

    assert_equals_big_batch(train)


@pytest.mark.row(
    "spektral",
    "`DisjointLoader` with graphs of different sizes, and a built-in loss",
    "equal to the big batch",
)
def test_spektral():
    """The guess: not equal, as x has a row per node. Samples are the targets' rows."""
    import spektral

    random = np.random.default_rng(8)

    class Graphs(spektral.data.Dataset):
        def read(self):
            nodes = 2 + np.arange(SAMPLES) % 4
            return [
                spektral.data.Graph(
                    x=random.normal(size=(n, 3)).astype("float32"),
                    a=np.ones((n, n), "float32"),
                    y=random.uniform(1, 2, 2).astype("float32"),
                )
                for n in nodes
            ]

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.convolution = spektral.layers.GCNConv(4, activation="tanh")
            self.pool, self.out = spektral.layers.GlobalSumPool(), keras.layers.Dense(2)

        def call(self, inputs):
            x, a, i = inputs
            return self.out(self.pool([self.convolution([x, a]), i]))

    graphs = Graphs()

    def train(optimizer, batch_size):
        loader = spektral.data.DisjointLoader(
            graphs, batch_size=batch_size, epochs=EPOCHS, shuffle=False
        )
        model = Network()
        model.compile(optimizer, "mse")
        steps = loader.steps_per_epoch
        model.fit(loader.load(), steps_per_epoch=steps, epochs=EPOCHS, verbose=0)
        return model

    assert_equals_big_batch(train)


@pytest.mark.row("deepctr", "`DeepFM`", "equal to the big batch")
def test_deepctr():
    """The guess: equal: its penalties are on weights."""
    from deepctr.feature_column import DenseFeat, SparseFeat
    from deepctr.models import DeepFM

    rows = np.arange(SAMPLES)
    columns = [SparseFeat("user", 5, embedding_dim=4), DenseFeat("age", 1)]
    arrays = {"user": rows * 3 % 5, "age": data()[0][:, :1]}, (rows * 7 % 3 > 0).astype("float32")

    def train(optimizer, batch_size):
        model = DeepFM(columns, columns, dnn_hidden_units=(4,))
        fit(compiled(model, optimizer, "binary_crossentropy"), batch_size, arrays)
        return model

    assert_equals_big_batch(train, atol=3e-6)


@pytest.mark.row(
    "csbdeep",
    "`prepare_model` with `accumulating(keras.optimizers.Adam)`",
    "equal to the big batch",
)
def test_csbdeep():
    """The guess: `AdamAccumulate` does, too. csbdeep takes optimizers of the newer style alone."""
    from csbdeep.internals import nets
    from csbdeep.internals import train as training_of

    images = np.random.default_rng(9).uniform(size=(2, SAMPLES, 8, 8, 1)).astype("float32")
    adam = keras.optimizers.Adam
    pair = (
        lambda: adam(RATE / 10),
        lambda: hosts.accum.accumulating(adam)(RATE / 10, accum_iters=LENGTH),
    )

    def train(optimizer, batch_size):
        model = nets.custom_unet(
            (8, 8, 1), "linear", n_depth=1, n_filter_base=2, kernel_size=(3, 3), pool_size=(2, 2)
        )
        training_of.prepare_model(model, optimizer, "mse")
        fit(model, batch_size, tuple(images))
        return training.weights(model)

    assert_equals_big_batch(train, atol=3e-6, optimizers=pair)
