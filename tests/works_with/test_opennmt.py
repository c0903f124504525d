"""OpenNMT-tf's own training loop, on TensorFlow 2.15."""

import hosts
import numpy as np
import pytest
from against_stock import assert_equals_big_batch, distance, ours, run, stock
from hosts import keras
from training import BIG, EPOCHS, LENGTH, MICRO, SAMPLES, initialize

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="TensorFlow 2.15 alone"),
]
TOKENS = 5


def trained_with(lengths, averages=None, **settings):
    """Train on sentences of these lengths. Their loss is divided by the tokens of a batch."""
    import opennmt

    tf = hosts.tf

    class Inputter(opennmt.inputters.Inputter):
        def make_dataset(self, data_file, training=None):
            raise NotImplementedError

        def input_signature(self):
            return {}

    class Regression(opennmt.models.Model):
        def __init__(self):
            super().__init__(Inputter())
            self.layer = keras.layers.Dense(2, name="out")

        def split_features_labels(self, batch):
            return batch, batch

        def call(self, features, labels=None, training=None, step=None):
            return self.layer(features["x"]), None

        def compute_loss(self, outputs, labels, training=True):
            mask = tf.sequence_mask(labels["length"], TOKENS, tf.float32)
            errors = tf.reduce_mean((outputs - labels["y"]) ** 2, -1)
            return tf.reduce_sum(mask * errors), tf.reduce_sum(mask)

    def train(optimizer, batch_size):
        random = np.random.default_rng(3)
        x = random.uniform(-1, 1, (SAMPLES, TOKENS, 3)).astype("float32")
        y = random.uniform(1, 2, (SAMPLES, TOKENS, 2)).astype("float32")
        arrays = {"x": x, "y": y, "length": np.array(lengths, "int32")}
        batches = tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size).repeat(EPOCHS)
        model = Regression()
        model.layer.build((None, None, 3))
        initialize(model.layer)
        trainer = opennmt.training.Trainer(model, optimizer)
        if averages is not None:
            move = trainer._update_moving_average

            def note(average):
                averages.append(average)
                move(average)

            trainer._update_moving_average = note
        trainer(batches, save_steps=None, report_steps=1000, **settings)
        return {str(i): w for i, w in enumerate(model.layer.get_weights())}

    return train


EVEN, UNEVEN = SAMPLES * [4], 1 + np.arange(SAMPLES) * 7 % 5


@pytest.mark.row(
    "OpenNMT-tf",
    "`Trainer` with one of ours",
    "equal to the big batch with as many tokens in each batch; else each micro-batch counts the "
    "same, silently: give the Trainer a stock optimizer and `accum_steps`",
)
def test_trainer():
    """The guess: within 1e-4, from an unknown cause."""
    assert_equals_big_batch(trained_with(EVEN))
    train = trained_with(UNEVEN)
    expected = run(train, stock, BIG)
    assert distance(run(train, ours, MICRO), expected) > 1e-3
    found = run(trained_with(UNEVEN, accum_steps=LENGTH), stock, MICRO)
    assert distance(found, expected) < 1e-6


@pytest.mark.row(
    "OpenNMT-tf",
    "`Trainer(...)(moving_average_decay=0.9)`",
    "not equal: the average moves in each micro-batch, silently: give the Trainer a stock "
    "optimizer and `accum_steps`",
)
def test_moving_average():
    """The guess: so."""

    def average(make, batch_size, **settings):
        averages = []
        settings["moving_average_decay"] = 0.9
        run(trained_with(EVEN, averages, **settings), make, batch_size)
        (last,) = set(averages)
        return {str(i): last._ema.average(v).numpy() for i, v in enumerate(last._variables)}

    expected = average(stock, BIG)
    assert distance(average(ours, MICRO), expected) > 1e-3
    assert distance(average(stock, MICRO, accum_steps=LENGTH), expected) < 1e-6
