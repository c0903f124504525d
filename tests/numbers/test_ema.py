"""`use_ema` before the first update, when there is no average yet, and over several trainings."""


import hosts
import numpy as np
import pytest
from cases import skip_file_on_keras2
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    assert_equal,
    batches,
    compiled,
    data,
    dense_model,
    fit,
    initialize,
    weights,
)

skip_file_on_keras2("moving average of the weights")

pytestmark = pytest.mark.skipif(not hosts.HAS_EMA, reason="tf_keras's legacy Adam has no use_ema")
keras3_only = pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="in tf_keras an average begins with the weights of the build"
)
every_gate = pytest.mark.usefixtures("every_gate")
AVERAGE = {"use_ema": True, "ema_momentum": 0.5}
BITWISE = {"rtol": 0, "atol": 0}


def model_of(accum_iters=LENGTH, optimizer=hosts.ours, **more):
    arguments = {"learning_rate": 2**-5, **AVERAGE, **more}
    if optimizer is hosts.ours:
        arguments["accum_iters"] = accum_iters
    return compiled(dense_model(), optimizer("Adam", **arguments), hosts.mean_squared_error())


def some(micro_batches):
    return [array[: micro_batches * MICRO] for array in data()]


@keras3_only
@every_gate
def test_a_fit_that_ends_before_the_first_update_leaves_the_weights():
    model = model_of()
    before = weights(model)
    fit(model, MICRO, some(LENGTH - 1), epochs=1)
    assert_equal(weights(model), before, **BITWISE)
    initialized = initialize(model).get_weights()
    model.set_weights([w + 1 for w in initialized])  # new weights aren't overwritten either
    fit(model, MICRO, some(LENGTH), epochs=1)
    assert model.optimizer.completed_updates == 1
    assert min(np.abs(w).min() for w in weights(model).values()) > 0.3


@keras3_only
@every_gate
@pytest.mark.parametrize("scaled", [False, True])
def test_validation_with_swapped_weights(scaled):
    """Until there is an average, the validation uses the weights themselves."""
    stock = compiled(dense_model(), "sgd")
    stock.set_weights([w + 1 for w in stock.get_weights()])
    x, y = data()
    loss = stock.evaluate(x, y, verbose=0)

    model = model_of()
    fit(model, MICRO, some(1), epochs=1)  # the optimizer has its variables
    optimizer = model.optimizer
    if scaled:
        optimizer = hosts.loss_scaled(optimizer, initial_scale=4.0)
        model = compiled(model, optimizer)
    model.set_weights(stock.get_weights())
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    settings = {"validation_data": (x, y), "callbacks": [swap], "epochs": 2}
    history = fit(model, MICRO, some(1), **settings).history
    np.testing.assert_allclose(history["val_loss"], [loss, loss], rtol=1e-6)
    assert_equal(weights(model), weights(stock), **BITWISE)


@keras3_only
@every_gate
def test_the_average_is_that_of_the_big_batch():
    """After a fit without an update, and with a swap at each epoch: weights and slots."""
    x, y = data()
    reference = model_of(optimizer=hosts.stock)
    model = model_of()
    fit(model, MICRO, some(2), epochs=1)
    swap = keras.callbacks.SwapEMAWeights
    rest = [array[2 * MICRO :] for array in (x, y)]
    fit(model, MICRO, rest, epochs=1, callbacks=[swap(swap_on_epoch=True)])
    big = LENGTH * MICRO
    fit(reference, big, (x, y), epochs=1, callbacks=[swap(swap_on_epoch=True)])
    assert len(batches(big)) == model.optimizer.completed_updates
    assert_equal(weights(model), weights(reference))
    ours, stock = ([hosts.array(v) for v in m.optimizer.variables] for m in (model, reference))
    for actual, expected in zip(ours, stock):
        np.testing.assert_allclose(actual, expected, **hosts.TOLERANCE)


def averages(optimizer):
    found = optimizer.variables
    return [hosts.array(v) for v in found if "average" in v.name]


@keras3_only
@every_gate
def test_the_average_before_the_first_update(tmp_path):
    """It is zero, as in the stock optimizer; after a fit without an update, it is the weights."""
    reference, model = model_of(optimizer=hosts.stock), model_of()
    for m in (reference, model):
        hosts.build(m)
        assert averages(m.optimizer) and not any(a.any() for a in averages(m.optimizer))
    fit(model, MICRO, some(2), epochs=1)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    for average, weight in zip(averages(model.optimizer), model.get_weights()):
        np.testing.assert_array_equal(average, weight)
    x, y = data()
    fit(model, MICRO, (x[2 * MICRO : LENGTH * MICRO], y[2 * MICRO : LENGTH * MICRO]), epochs=1)
    fit(reference, LENGTH * MICRO, some(LENGTH), epochs=1)
    for m in (reference, model):
        assert m.optimizer.iterations == 1
    for average, expected in zip(averages(model.optimizer), averages(reference.optimizer)):
        np.testing.assert_allclose(average, expected, **hosts.TOLERANCE)
