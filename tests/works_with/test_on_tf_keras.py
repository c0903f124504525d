"""Packages for tf_keras, the Keras 2 beside Keras 3."""

import contextlib

import hosts
import numpy as np
import pytest
import training
from against_stock import assert_equals_big_batch, distance, ours, run, stock
from hosts import keras
from training import BIG, EPOCHS, LENGTH, MICRO, SAMPLES, WINDOWS, compiled, fit, initialize

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.usefixtures("float32"),
    pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="tf_keras alone"),
]


# -- larq ------------------------------------------------------------------------------------------


def case(adam, bop):
    import larq

    return larq.optimizers.CaseOptimizer(
        (larq.optimizers.Bop.is_binary_variable, bop), default_optimizer=adam
    )


def binary_network(optimizer, batch_size):
    import larq

    binary = {"kernel_quantizer": "ste_sign", "use_bias": False}
    layers = [larq.layers.QuantDense(8, name="hidden", **binary), keras.layers.Dense(2, name="out")]
    model = compiled(hosts.sequential((3,), layers), optimizer)
    fit(model, batch_size)
    return training.weights(model)


BOP = {"threshold": 1e-4, "gamma": 0.2}


@pytest.mark.row(
    "larq",
    "`CaseOptimizer` with `AdamAccumulate` and `accumulating(Bop)`",
    "equal to the big batch",
)
def test_larq():
    """The guess: equal."""
    import larq

    bop = lambda: larq.optimizers.Bop(**BOP)  # noqa: E731
    accumulating = hosts.accum.accumulating(larq.optimizers.Bop)
    pair = (
        lambda: case(stock(), bop()),
        lambda: case(ours(), accumulating(accum_iters=LENGTH, **BOP)),
    )
    assert_equals_big_batch(binary_network, optimizers=pair)


@pytest.mark.row(
    "larq",
    "`CaseOptimizer` with `AdamAccumulate` and its own `Bop`",
    "not equal: `Bop` flips weights in each micro-batch",
)
def test_stock_bop():
    """The guess: not equal."""
    import larq

    bop = lambda: larq.optimizers.Bop(**BOP)  # noqa: E731
    expected = run(binary_network, lambda: case(stock(), bop()), BIG)
    actual = run(binary_network, lambda: case(ours(), bop()), MICRO)
    assert distance(actual, expected) > 0.1


# -- TensorFlow Recommenders and Probability -------------------------------------------------------

USERS, ITEMS = (np.arange(SAMPLES) * factor % 7 for factor in (3, 5))


def recommender(task, call):
    import tensorflow_recommenders as tfrs

    class Model(tfrs.Model):
        def __init__(self):
            super().__init__()
            self.users, self.items = keras.layers.Embedding(7, 4), keras.layers.Embedding(7, 4)
            self.task = task()

        def compute_loss(self, inputs, training=False):
            return call(self.task, self.users(inputs["user"]), self.items(inputs["item"]))

    def train(optimizer, batch_size):
        arrays = {"user": USERS, "item": ITEMS}
        model = Model()
        model.compile(optimizer)
        model.compute_loss(arrays)
        initialize(model)
        batches = hosts.tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)
        model.fit(batches, epochs=EPOCHS, verbose=0)
        return model

    return train


@pytest.mark.row(
    "tensorflow-recommenders",
    "`tasks.Ranking`",
    "equal to the big batch, with a warning: a model of its own has a `compute_loss`",
)
def test_ranking():
    """The guess: equal, since this loss is a mean."""
    import tensorflow_recommenders as tfrs

    def call(task, users, items):
        predicted = hosts.tf.reduce_sum(users * items, axis=-1, keepdims=True)
        return task(labels=hosts.tf.ones_like(predicted), predictions=predicted)

    task = lambda: tfrs.tasks.Ranking(keras.losses.MeanSquaredError())  # noqa: E731
    assert_equals_big_batch(recommender(task, call), says="own `compute_loss`")


@pytest.mark.row(
    "tensorflow-recommenders",
    "`tasks.Retrieval`",
    "not equal, as its negatives are the micro-batch's; `fit` warns",
)
def test_retrieval():
    """The guess: not equal."""
    import tensorflow_recommenders as tfrs

    train = recommender(tfrs.tasks.Retrieval, lambda task, users, items: task(users, items))
    with pytest.warns(hosts.accum.AccumulationWarning, match="'categorical_crossentropy' is a sum"):
        actual = run(train, ours, MICRO)
    assert distance(actual, run(train, stock, BIG)) > 1e-2


@pytest.mark.row(
    "tensorflow-probability",
    "`DenseFlipout`: its KL divergence, which counts once per window",
    "equal to the big batch",
)
def test_flipout():
    """The guess: equal for the KL. What it draws differs, so the test draws the mean."""
    import tensorflow_probability as tfp

    def divergence(posterior, prior, _):
        return tfp.distributions.kl_divergence(posterior, prior) / SAMPLES

    def train(optimizer, batch_size):
        settings = {
            "kernel_divergence_fn": divergence,
            "kernel_posterior_tensor_fn": lambda distribution: distribution.mean(),
        }
        layers = [tfp.layers.DenseFlipout(2, **settings)]
        model = compiled(hosts.sequential((3,), layers), optimizer)
        fit(model, batch_size)
        return model

    assert_equals_big_batch(train)


# -- pruning ---------------------------------------------------------------------------------------


@pytest.mark.row(
    "tensorflow-model-optimization",
    "`prune_low_magnitude` with `accum_iters * (step - 1) + 1` for `begin_step` and `end_step`, "
    "and `accum_iters * frequency`",
    "equal to the big batch, with a warning: each layer counts its forward passes in training",
)
def test_pruning():
    """The guess: `accum_iters * step`. Then the masks come with a window's last micro-batch."""
    import tensorflow_model_optimization as tfmot

    sparsity = tfmot.sparsity.keras
    warns = pytest.warns(hosts.accum.AccumulationWarning, match="Layers keep values")

    def train(optimizer, batch_size):
        length = LENGTH if training.is_ours(optimizer) else 1
        begin, end = (length * (update - 1) + 1 for update in (WINDOWS, 2 * WINDOWS))
        schedule = sparsity.PolynomialDecay(0.2, 0.6, begin, end, frequency=length)
        start = initialize(training.dense_model()).get_weights()
        model = sparsity.prune_low_magnitude(training.dense_model(), pruning_schedule=schedule)
        for w, value in zip(model.trainable_weights, start):  # not the masks
            w.assign(value)
        model.compile(optimizer, "mse")
        with warns if length > 1 else contextlib.nullcontext():
            fit(model, batch_size, callbacks=[sparsity.UpdatePruningStep()])
        found = training.slots(model)
        found.update({w.name: w.numpy() for w in model.trainable_weights})
        assert any((w == 0).mean() > 0.4 for w in found.values())
        return found

    assert_equals_big_batch(train)
