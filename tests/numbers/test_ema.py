"""`use_ema` before the first update, when there is no average yet, and over several trainings."""

import hosts
import numpy as np
import pytest
import training
from cases import quick_once_on_keras3
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, weights

if not hosts.IS_KERAS3:
    pytest.skip("in tf_keras an average begins with the weights", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("every_gate")
BIG = LENGTH * MICRO


def model_of(make=hosts.ours):
    more = {"accum_iters": LENGTH, "reduction": "mean"} if make is hosts.ours else {}
    optimizer = make("Adam", learning_rate=2**-5, use_ema=True, ema_momentum=0.5, **more)
    return compiled(dense_model(), optimizer, hosts.mean_squared_error())


def some(start, stop):
    return [array[start * MICRO : stop and stop * MICRO] for array in data()]


def averages(model):
    return [hosts.array(v) for v in model.optimizer.variables if "average" in v.name]


def test_a_fit_that_ends_before_the_first_update_leaves_the_weights():
    model = model_of()
    before = weights(model)
    fit(model, MICRO, some(0, LENGTH - 1), epochs=1)
    assert_equal(weights(model), before, rtol=0, atol=0)
    initialized = training.initialize(model).get_weights()
    model.set_weights([w + 1 for w in initialized])  # new weights aren't overwritten either
    fit(model, MICRO, some(0, LENGTH), epochs=1)
    assert model.optimizer.completed_updates == 1
    assert min(np.abs(w).min() for w in weights(model).values()) > 0.3


@quick_once_on_keras3
@pytest.mark.filterwarnings("ignore:keras_accum. A window is open")  # compiled in between
@pytest.mark.parametrize("scaled", [False, True])
def test_validation_with_swapped_weights(scaled):
    """Until there is an average, the validation uses the weights themselves."""
    stock = compiled(dense_model(), "sgd")
    stock.set_weights([w + 1 for w in stock.get_weights()])
    loss = stock.evaluate(*data(), verbose=0)
    model = model_of()
    fit(model, MICRO, some(0, 1), epochs=1)  # the optimizer has its variables
    if scaled:
        model = compiled(model, hosts.loss_scaled(model.optimizer, initial_scale=4.0))
    model.set_weights(stock.get_weights())
    callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
    settings = {"validation_data": data(), "callbacks": callbacks, "epochs": 2}
    history = fit(model, MICRO, some(0, 1), **settings).history
    np.testing.assert_allclose(history["val_loss"], [loss, loss], rtol=1e-6)
    assert_equal(weights(model), weights(stock), rtol=0, atol=0)


def test_the_average_is_that_of_the_big_batch():
    """After a fit without an update, and with a swap at each epoch: weights and slots."""
    reference, model = model_of(hosts.stock), model_of()
    fit(model, MICRO, some(0, 2), epochs=1)
    for each, size, arrays in ((model, MICRO, some(2, None)), (reference, BIG, data())):
        callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
        fit(each, size, arrays, epochs=1, callbacks=callbacks)
    assert_equal(weights(model), weights(reference))
    for own, stock in zip(model.optimizer.variables, reference.optimizer.variables):
        np.testing.assert_allclose(hosts.array(own), hosts.array(stock), **hosts.TOLERANCE)


@quick_once_on_keras3
def test_the_average_before_the_first_update(tmp_path):
    """It is the weights from `build` on, and reading it writes nothing."""
    reference, model = model_of(hosts.stock), model_of()
    hosts.build(model)
    for read in (lambda: averages(model), lambda: model.optimizer._model_variables_moving_average):
        for average, weight in zip(read(), model.get_weights()):
            np.testing.assert_array_equal(hosts.array(average), weight)
        model.set_weights([2 * weight for weight in model.get_weights()])
        assert any((hosts.array(a) != w).any() for a, w in zip(read(), model.get_weights()))
        training.initialize(model)
    fit(model, MICRO, some(0, 2), epochs=1)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    for average, weight in zip(averages(model), model.get_weights()):
        np.testing.assert_array_equal(average, weight)
    fit(model, MICRO, some(2, LENGTH), epochs=1)
    fit(reference, BIG, some(0, LENGTH), epochs=1)
    for average, expected in zip(averages(model), averages(reference)):
        np.testing.assert_allclose(average, expected, **hosts.TOLERANCE)
