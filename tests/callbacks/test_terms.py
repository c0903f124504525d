"""Sums: each term of the big batch's loss counts as in the big batch, or `fit` says what to write.

test_right_by_default.py has what the default does by itself.
"""

import warnings

import hosts
import numpy as np
import pytest
import zoo
from cases import once_by_torch, quick_once, skip_file_on_keras2
from hosts import keras
from training import assert_equal, compiled, initialize, weights
from zoo import network

skip_file_on_keras2("a CallbackList that knows the model")

SIZE, LENGTH = 4, 3
BIG = SIZE * LENGTH
RATE = {"learning_rate": 0.01}
layers, penalty = keras.layers, keras.regularizers.L2(0.5)
TOLERANCE = {"rtol": 0, "atol": 2e-6}  # without the lines named here, weights are 1e-3 off
COUNTS, WOULD = "reduction='sum' counts", "reduction='sum' would count"


def mean_square(reduction="sum"):
    return keras.losses.MeanSquaredError(reduction=reduction)


def train(model, optimizer, size, loss, samples=4 * BIG, callbacks=(), said=None, **arguments):
    """Train for two epochs, and return the model. The texts of warnings are added to `said`."""
    compiled(model, optimizer, loss, run_eagerly=True, **arguments)
    x, y = zoo.arrays(samples)
    outputs = len(model.outputs)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        settings = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(x, [y] * outputs if outputs > 1 else y, batch_size=size, **settings)
    if said is not None:
        said += [text for text in (str(w.message) for w in found) if "reduction=" in text]
    return model


def ours(reduction="mean", **arguments):
    return hosts.ours("SGD", **{"accum_iters": LENGTH, "reduction": reduction, **RATE, **arguments})


def stock():
    return hosts.stock("SGD", **RATE)


def network_of(kind):
    if kind == "a mean":
        return zoo.heads("a", "b"), [mean_square(), mean_square("sum_over_batch_size")]
    more = [zoo.Adds()] if kind == "an added loss" else []
    penalties = {"weights": "kernel_regularizer", "activity": "activity_regularizer"}
    arguments = {penalties[kind]: penalty} if kind in penalties else {}
    return network(*more, **arguments), mean_square()


KINDS = ["weights", "an added loss"]
KINDS += [pytest.param(kind, marks=once_by_torch) for kind in ("activity", "a mean")]


@quick_once
@pytest.mark.parametrize("kind", KINDS)
def test_a_term_beside_a_sum(kind):
    """The lines that `fit` names instead of reduction="sum" are exact."""
    if kind == "activity" and not zoo.activity_is_a_mean():
        pytest.skip("a sum in this version")
    (model, loss), said = network_of(kind), []
    if kind in ("weights", "a mean"):
        with pytest.raises(ValueError, match=WOULD) as error:
            train(model, ours("sum"), SIZE, loss)
        said = [str(error.value)]
    else:
        train(model, ours("sum"), SIZE, loss, said=said)
        assert len(said) == 1 and COUNTS in said[0]
    factors = [3.0, 1.0] if kind == "a mean" else [3.0]
    assert f"`compile(..., loss_weights={factors})`" in said[0]
    assert ("use `MicroBatches`" in said[0]) == hosts.IS_KERAS3
    expected = weights(train(network_of(kind)[0], stock(), BIG, loss))
    model = train(network_of(kind)[0], ours(), SIZE, loss, said=said, loss_weights=factors)
    assert len(said) == 1  # with its factor, a sum is right
    assert_equal(weights(model), expected, **TOLERANCE)
    if hosts.IS_TORCH:
        slices = [hosts.accum.MicroBatches(SIZE)]
        model = train(network_of(kind)[0], stock(), BIG, loss, callbacks=slices)
        assert_equal(weights(model), expected, **TOLERANCE)


@once_by_torch
def test_sums_alone():
    """Sums that layers add are exact, and what isn't trained or accumulated isn't refused."""
    said = []
    expected = weights(train(network(zoo.Adds(zoo.total)), stock(), BIG, mean_square()))
    model = train(network(zoo.Adds(zoo.total)), ours("sum"), SIZE, mean_square(), said=said)
    assert_equal(weights(model), expected, **TOLERANCE)
    assert len(said) == 1 and "right only for sums over samples" in said[0]

    said = []
    frozen = network(kernel_regularizer=penalty)
    frozen.get_layer("hidden").trainable = False
    train(frozen, ours("sum"), SIZE, mean_square(), said=said)
    train(network(kernel_regularizer=penalty), ours("sum", accum_iters=1), BIG, mean_square())
    train(zoo.heads("a", "b"), ours("sum"), SIZE, [mean_square(), mean_square()], said=said)
    assert not said


@once_by_torch
def test_which_line_is_said_of_a_sum_beside_others():
    """No warning sends you to a line that says something, and none is said of sums alone."""
    for more, line in (
        ({}, None),
        ({"kernel_regularizer": penalty}, "`compile(..., loss_weights="),
    ):
        said, loss = [], mean_square()
        train(network(**more), ours("auto"), SIZE, loss, said=said)
        assert len(said) == bool(line) and all(f"{line}[3.0])`" in text for text in said)
        train(network(**more), ours("auto"), SIZE, loss, said=said, loss_weights=[3.0])
        assert len(said) == bool(line)


@once_by_torch
def test_terms_in_a_loss_of_the_model():
    """Its own code may count them right, so it isn't refused."""
    said, model = [], network(cls=zoo.OwnLoss, kernel_regularizer=penalty)
    train(model, ours("sum"), SIZE, mean_square(), said=said)
    assert len(said) == 1 and f"{COUNTS} penalties on weights" in said[0]


@pytest.mark.skipif(hosts.IS_KERAS3, reason="Keras 3 builds a model before it trains")
def test_a_model_that_is_built_in_its_first_step():
    model = keras.Sequential([layers.Dense(2, kernel_regularizer=penalty)])
    model.compile(ours("sum"), mean_square(), run_eagerly=True)
    with pytest.raises(ValueError, match=WOULD):
        model.fit(*zoo.arrays(4 * BIG), batch_size=SIZE, verbose=0)
    assert model.optimizer.completed_updates == 0


@pytest.mark.skipif(hosts.IS_KERAS3, reason="ragged tensors in Keras 2 only")
@pytest.mark.parametrize("eager", [True, False])
def test_ragged_targets(eager):
    lengths = np.array([1, 4, 2, 5, 3, 3, 2, 6, 1, 7, 2, 2])
    random, tf = np.random.default_rng(0), hosts.tf
    x, y = (
        tf.RaggedTensor.from_row_lengths(random.uniform(1, 2, (sum(lengths), n)), lengths)
        for n in (3, 2)
    )
    data, found = tf.data.Dataset.from_tensor_slices((x, y)), []
    for optimizer, size in (ours("auto"), SIZE), (stock(), BIG):
        i = keras.Input((None, 3), ragged=True)
        model = keras.Model(i, layers.Dense(2)(i))
        model.compile(optimizer, "mse", run_eagerly=eager)
        initialize(model)
        model.fit(data.batch(size), epochs=2, verbose=0)
        found.append(dict(enumerate(model.get_weights())))
    assert_equal(*found)
