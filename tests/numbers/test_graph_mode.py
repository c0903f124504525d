"""Keras 2 on TensorFlow 2 without eager execution: with graphs and sessions, as in TensorFlow 1."""

import re

import hosts
import numpy as np
import pytest
from cases import on_adam
from hosts import keras
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

if not hosts.IS_LEGACY:
    pytest.skip("about tf_keras's graph mode, which others don't have", allow_module_level=True)

tf = hosts.tf
pytestmark = pytest.mark.filterwarnings("ignore:`Model.state_updates` will be removed")  # Keras


@pytest.fixture
def graph_mode():
    """Objects made in this context are as after `tf.compat.v1.disable_eager_execution()`."""
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
    # A graph adds numbers to repeated names.
    names = [re.sub(r"_\d+/", "/", name) for name in found]
    return dict(zip(names, keras.backend.batch_get_value(list(found.values()))))


def expected(case, bigs):
    """The stock optimizer's values after these big batches, also in graph mode."""
    model = graph_model(hosts.stock(case.name, **case.arguments))
    start = values(model)
    for x, y in bigs:
        model.train_on_batch(x, y)
    end = values(model)
    assert_moved(start, {name: end[name] for name in start if "iter" not in name and "/" in name})
    return end


# An infinite micro-batch is inserted before each of these.
BAD = (1, LENGTH - 1, LENGTH, 2 * LENGTH)


@on_adam
@pytest.mark.parametrize("dynamic", [True, False])
def test_micro_batches_skipped_by_a_loss_scale_optimizer(case, dynamic, graph_mode, every_gate):
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


@on_adam
def test_apply_partial_window(case, graph_mode, every_gate):
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    model, (x, y) = graph_model(optimizer), data()
    graph, sizes = tf.compat.v1.get_default_graph(), []
    bigs = [slice(0, 3 * MICRO), slice(3 * MICRO, 4 * MICRO), slice(4 * MICRO, 4 * MICRO + BIG)]
    for i, big in enumerate(bigs):
        for start in range(big.start, big.stop, MICRO):
            model.train_on_batch(x[start : start + MICRO], y[start : start + MICRO])
        optimizer.apply_partial_window()
        assert (optimizer.completed_updates, optimizer.window_position) == (i + 1, 0)
        sizes.append(len(graph.get_operations()))
        before = values(model)
        optimizer.apply_partial_window()
        assert_equal(values(model), before, rtol=0, atol=0)
    assert sizes[0] == sizes[1] == sizes[2]
    assert_equal(values(model), expected(case, [(x[big], y[big]) for big in bigs]))


@on_adam
def test_apply_partial_window_after_a_skipped_micro_batch(case, graph_mode):
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    model, (x, y) = graph_model(hosts.loss_scaled(optimizer, 8.0)), data()
    for _ in range(2):
        model.train_on_batch(x[:BIG], y[:BIG])
        model.train_on_batch(x, np.full_like(y, np.inf))
        optimizer.apply_partial_window()
    assert optimizer.completed_updates == 2
    assert_equal(values(model), expected(case, [(x[:BIG], y[:BIG])] * 2))


@on_adam
def test_the_callback_apply_partial_window(case, graph_mode, every_gate):
    """Twelve micro-batches: windows of 5, 5 and 2; the last one closes before the validation."""

    def trained(optimizer, size, *callbacks):
        model = graph_model(optimizer)
        settings = {"epochs": 2, "validation_data": data(), "shuffle": False, "verbose": 0}
        history = model.fit(*data(), size, callbacks=list(callbacks), **settings).history
        return values(model), history["val_loss"]

    ours = hosts.ours(case.name, accum_iters=5, **case.arguments)
    actual, losses = trained(ours, MICRO, hosts.accum.ApplyPartialWindow())
    expected, stock_losses = trained(hosts.stock(case.name, **case.arguments), 5 * MICRO)
    assert_equal(actual, expected)
    np.testing.assert_allclose(losses, stock_losses, rtol=1e-9)


REFUSED = {
    "AccumulationMonitor": ("AccumulationMonitor", {}),
    "PythonGate": ("PythonGate", {}),
    "MicroBatchWeights": ("reduction='weighted' in `fit`", {"reduction": "weighted"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_graph_mode_refuses(name, graph_mode):
    what, arguments = REFUSED[name]
    model = graph_model(hosts.ours("Adam", accum_iters=2, **arguments))
    with pytest.raises(ValueError, match=f"{what} needs .*disable_eager_execution..: leave"):
        model.fit(*data(), MICRO, callbacks=[getattr(hosts.accum, name)()], verbose=0)


def test_the_monitor_at_accum_iters_1(graph_mode):
    model = graph_model(hosts.ours("Adam", accum_iters=1, learning_rate=2**-5))
    callbacks = [hosts.accum.AccumulationMonitor()]
    logs = model.fit(*data(), BIG, callbacks=callbacks, verbose=0).history
    assert (logs["completed_updates"], logs["learning_rate"]) == ([3], [2**-5])


@pytest.mark.filterwarnings("ignore::UserWarning")  # from Keras, about graph mode on replicas
def test_a_partial_window_on_replicas_is_refused(strategy, graph_mode):
    with strategy.scope():
        model = graph_model(hosts.ours("SGD", accum_iters=2))
    model.fit(*[array[:MICRO] for array in data()], MICRO, verbose=0)
    assert model.optimizer.window_position == 1
    with pytest.raises(ValueError, match="apply_partial_window.*disable_eager.*MirroredStrategy"):
        model.optimizer.apply_partial_window()
