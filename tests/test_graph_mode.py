"""Keras 2 on TensorFlow 2 without eager execution: graphs and sessions, as in TensorFlow 1."""

import re

import hosts
import numpy as np
import pytest
from cases import CASES, few_cases
from hosts import keras, tf
from training import (
    BIG,
    LENGTH,
    MICRO,
    assert_equal,
    assert_moved,
    batches,
    data,
    dense_model,
    initialize,
    inner,
)

pytestmark = pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="the others have one mode")


@pytest.fixture
def graph_mode():
    """What is made in here is as after `tf.compat.v1.disable_eager_execution()`."""
    with tf.Graph().as_default(), tf.compat.v1.Session().as_default():
        assert not tf.compat.v1.executing_eagerly_outside_functions()
        yield


def graph_model(optimizer):
    model = dense_model()
    model.compile(optimizer, "mse")
    return initialize(model)


def values(model):
    """Weights and the optimizer's slots as {name: array}."""
    found = {v.name: v for v in model.weights}
    found.update(hosts.slots(inner(model.optimizer), model.trainable_weights))
    names = [re.sub(r"_\d+/", "/", name) for name in found]  # a graph has each name once
    return dict(zip(names, keras.backend.batch_get_value(list(found.values()))))


def expected(case, bigs):
    """The stock optimizer's values at these big batches, in a graph too."""
    model = graph_model(hosts.stock(case.name, **case.arguments))
    start = values(model)
    for x, y in bigs:
        model.train_on_batch(x, y)
    end = values(model)
    assert_moved(start, {name: end[name] for name in start if "iter" not in name and "/" in name})
    return end


BAD = (1, LENGTH - 1, LENGTH, 2 * LENGTH)  # the micro-batches before which there is one too many


@few_cases
@pytest.mark.parametrize("dynamic", [True, False])
def test_skipped_by_a_loss_scale_optimizer(case, dynamic, graph_mode, every_gate):
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    scaled = keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic, initial_scale=8.0)
    model, counts = graph_model(scaled), []
    for i, (x, y) in enumerate(batches(MICRO)):
        if dynamic and i in BAD:
            before = values(model)
            model.train_on_batch(x, np.full_like(y, np.inf))
            assert optimizer.window_position == i % LENGTH
            after = values(model)
            assert_equal({**after, "iterations": 0}, {**before, "iterations": 0}, rtol=0, atol=0)
        model.train_on_batch(x, y)
        counts.append(optimizer.completed_updates)
    assert counts == [(i + 1) // LENGTH for i in range(len(counts))]
    assert_equal(values(model), expected(case, batches(BIG)))
