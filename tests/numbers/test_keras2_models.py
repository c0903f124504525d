"""Standalone Keras 2: models of many variables, and one optimizer in several models."""

import hosts
import numpy as np
import pytest
from cases import on_adam
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    assert_equal,
    compiled,
    data,
    dense_model,
    go_on,
    weights,
)

pytestmark = pytest.mark.skipif(
    not hosts.IS_KERAS2, reason="about graphs and files of standalone Keras 2"
)


def chain(layers, name="dense"):
    return hosts.sequential(
        (3,), [keras.layers.Dense(2, name=f"{name}_{i}") for i in range(layers)]
    )


# -- the size of a graph -----------------------------------------------------------------------


def edges(optimizer, layers):
    """The number of control edges of a train step and of a partial window's update together."""
    hosts.set_random_seed()
    model = compiled(chain(layers), optimizer())
    model._make_train_function()
    model.optimizer.apply_partial_window()
    graph = keras.backend.get_session().graph
    return sum(len(operation.control_inputs) for operation in graph.get_operations())


@on_adam
def test_control_edges_grow_linearly_with_the_variables(case, every_gate):
    def ours():
        return hosts.ours(case.name, accum_iters=LENGTH, clipnorm=0.3, **case.arguments)

    few, some, many = (edges(ours, layers) for layers in (4, 8, 12))
    assert many - some == some - few


# -- a layer in two parts of a model -----------------------------------------------------------


@pytest.mark.parametrize("name", ["SGD", "RMSprop"])
def test_a_layer_in_two_parts_of_a_model_moves_once(name):
    """This Keras lists the layer's variables twice. The reference lists the variables once."""

    def trained(make, in_parts):
        hosts.set_random_seed()
        given, shared = keras.layers.Input((3,)), keras.layers.Dense(3, name="shared")
        first = second = shared
        if in_parts:
            first, second = (
                keras.models.Sequential([keras.layers.InputLayer((3,)), shared]) for _ in range(2)
            )
        model = compiled(keras.models.Model(given, second(first(given))), make())
        assert len(model.trainable_weights) == (4 if in_parts else 2)
        shared.set_weights([np.arange(9).reshape(3, 3) / 10 - 0.35, np.zeros(3)])
        before = model.get_weights()[:2]
        model.train_on_batch(np.ones((MICRO, 3)), np.zeros((MICRO, 3)))
        return before, model.get_weights()[:2]

    before, ours = trained(lambda: hosts.ours(name), in_parts=True)
    _, stock = trained(getattr(keras.optimizers, name), in_parts=False)
    assert any((a != b).any() for a, b in zip(before, ours))
    for actual, expected in zip(ours, stock):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


# -- long names --------------------------------------------------------------------------------


def test_a_file_of_long_names(tmp_path):
    """An HDF5 attribute has at most 64 kB. Keras splits a longer one and can't read it back."""
    path, name = str(tmp_path / "model.h5"), "block_" * 400
    for optimizer in (keras.optimizers.Adam, lambda: hosts.ours("Adam", accum_iters=LENGTH)):
        hosts.set_random_seed()
        model = compiled(chain(12, name), optimizer())
        go_on(model, stop=LENGTH + 1)
        saved = model.optimizer.get_weights()
        model.save(path)
        again = keras.models.load_model(path)
        for actual, expected in zip(again.optimizer.get_weights(), saved):
            np.testing.assert_array_equal(actual, expected)


# -- frozen layers -----------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batches", [LENGTH, LENGTH - 2])
def test_a_frozen_layer_does_not_move(micro_batches, every_gate):
    """Compiled again, the optimizer has neither a momentum nor a pending sum of the layer."""
    optimizer = hosts.ours("SGD", learning_rate=2**-3, momentum=0.9, accum_iters=LENGTH)
    model = go_on(compiled(dense_model(), optimizer), stop=micro_batches)
    before = weights(model)
    model.layers[-2].trainable = False
    model.compile(optimizer, "mse")
    go_on(model, micro_batches, micro_batches + LENGTH)
    moved = {name: (value != before[name]).any() for name, value in weights(model).items()}
    assert moved == {name: "hidden" not in name for name in before}


def test_a_model_that_is_compiled_again():
    """With its optimizer, it starts with a fresh window, and with `from_optimizer` it goes on."""
    counters, trained = [], {}
    for way in ("optimizer", "from_optimizer"):
        optimizer = hosts.ours("SGD", learning_rate=2**-3, momentum=0.9, accum_iters=LENGTH)
        model = go_on(compiled(dense_model(), optimizer), stop=LENGTH + 2)
        new = optimizer if way == "optimizer" else type(optimizer).from_optimizer(optimizer)
        model.compile(new, "mse")
        model._make_train_function()
        counters.append((new.completed_updates, new.window_position))
        go_on(model, LENGTH + 2, 2 * LENGTH)
        trained[way] = weights(model)
    assert counters == [(1, 0), (1, 2)]
    whole = compiled(
        dense_model(), hosts.ours("SGD", learning_rate=2**-3, momentum=0.9, accum_iters=LENGTH)
    )
    assert_equal(trained["from_optimizer"], weights(go_on(whole, stop=2 * LENGTH)))


# -- one optimizer in two models ---------------------------------------------------------------


def in_two_models(accum_iters=LENGTH):
    optimizer = hosts.ours("SGD", learning_rate=2**-3, accum_iters=accum_iters)
    models = [compiled(dense_model(), optimizer) for _ in range(2)]
    for model in models:
        model._make_train_function()
    return optimizer, models


def assert_is_big_batch(model, sizes):
    """Compare with the stock optimizer on batches of these numbers of micro-batches."""
    reference = compiled(dense_model(), hosts.stock("SGD", learning_rate=2**-3))
    arrays, start = data(), 0
    for size in sizes:
        end = start + size * MICRO
        reference.train_on_batch(*[array[start:end] for array in arrays])
        start = end
    assert_equal(weights(model), weights(reference))


@pytest.mark.parametrize("when", ["before", "within"])
def test_accum_iters_holds_for_all_models(when):
    optimizer, models = in_two_models()
    stop = {"before": 0, "within": 1}[when]
    for model in models:
        go_on(model, stop=stop)
    optimizer.accum_iters = 3
    assert optimizer.accum_iters == 3
    first = LENGTH if stop else 3
    for model in models:
        go_on(model, start=stop, stop=first + 3)
        assert_is_big_batch(model, [first, 3])
    assert optimizer.completed_updates == 4


def test_a_partial_window_of_another_model_is_refused():
    """With two models, the call doesn't say which model's window is meant."""
    optimizer, (first, second) = in_two_models()
    go_on(first, stop=1)
    with pytest.raises(ValueError, match="apply_partial_window.*several models.*its own optimizer"):
        optimizer.apply_partial_window()
    callbacks = [hosts.accum.ApplyPartialWindow()]
    with pytest.raises(ValueError, match="apply_partial_window.*several models.*its own optimizer"):
        first.fit(*data(), MICRO, shuffle=False, verbose=0, callbacks=callbacks)
    go_on(first, start=1, stop=LENGTH)


def test_a_partial_window_of_the_last_model():
    optimizer, (first, second) = in_two_models()
    go_on(first, stop=LENGTH)
    go_on(second, stop=2)
    optimizer.apply_partial_window()
    assert_is_big_batch(second, [2])
    assert_is_big_batch(first, [LENGTH])


def test_a_model_compiled_twice_counts_once():
    """Compiling again discards the open window, like all state of the optimizer."""
    optimizer = hosts.ours("SGD", learning_rate=2**-3, accum_iters=LENGTH)
    model = compiled(dense_model(), optimizer)
    go_on(model, stop=1)
    model.compile(optimizer, "mse")
    go_on(model, stop=2)
    optimizer.apply_partial_window()
    assert_is_big_batch(model, [2])
