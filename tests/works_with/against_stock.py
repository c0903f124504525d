"""A package's own training: with the stock optimizer at the big batch, and with ours."""

import contextlib

import hosts
import numpy as np
import pytest
import training
from hosts import keras
from training import BIG, LENGTH, MICRO

RATE = 0.05


def stock():
    return hosts.stock("Adam", learning_rate=RATE)


def ours(**arguments):
    return hosts.ours("Adam", learning_rate=RATE, **{"accum_iters": LENGTH, **arguments})


def run(train, make, batch_size):
    """Call `train`, which returns its model or a dict of arrays, from a fixed start."""
    keras.backend.clear_session()  # so that names don't depend on what ran before
    hosts.set_random_seed()  # on Keras 2 also a new graph, so the optimizer is made in it
    found = train(make(), batch_size)
    return found if isinstance(found, dict) else {**training.weights(found), **slots(found)}


def slots(model):
    return training.slots(model) if getattr(model, "optimizer", None) else {}


def distance(actual, expected):
    return max(np.abs(actual[name] - value).max() for name, value in expected.items())


def assert_equals_big_batch(
    train, atol=1e-6, optimizers=(stock, ours), ours_at=MICRO, kept=(), says=None
):
    """Compare what `train(optimizer, batch_size)` returns, but for names with a word of `kept`.

    The stock optimizer at the micro-batch has to be far from it, or nothing would be tested. `says`
    is a text in a warning of ours.
    """
    theirs, accumulating = optimizers
    expected = run(train, theirs, BIG)
    warns = pytest.warns(hosts.accum.AccumulationWarning, match=says)
    with warns if says else contextlib.nullcontext():
        actual = run(train, accumulating, ours_at)
    other = run(train, theirs, MICRO)
    compared = [name for name in expected if not any(word in name for word in kept)]
    expected = {name: expected[name] for name in compared}
    assert distance(other, expected) > 1e3 * atol
    training.assert_equal(actual, expected, rtol=0, atol=atol)
    return actual
