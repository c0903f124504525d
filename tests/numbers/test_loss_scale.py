"""A LossScaleOptimizer around ours, also when `compile` adds it by itself."""

import hosts
import numpy as np
import pytest
from cases import skip_file_on_keras2
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, inner, weights

skip_file_on_keras2("loss scaling")

keras3_only = pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="about .keras files of Keras 3's LossScaleOptimizer"
)


def set_policy(policy):
    setting = keras.mixed_precision
    setting.set_dtype_policy(policy) if hosts.IS_KERAS3 else setting.set_global_policy(policy)


@pytest.fixture
def mixed():
    """Set the global policy under which `compile` wraps an optimizer. `same_start` resets it."""
    hosts.set_floatx("float32")
    set_policy("mixed_float16")


def model_of(**arguments):
    arguments = {"learning_rate": 2**-5, "accum_iters": LENGTH, **arguments}
    return compiled(dense_model(), hosts.ours("Adam", **arguments), hosts.mean_squared_error())


def float32_data():
    return [array.astype("float32") for array in data()]


# -- attributes of our optimizers ------------------------------------------------------------------


def test_attributes_reach_the_inner_optimizer(mixed):
    model = model_of()
    optimizer = model.optimizer
    assert inner(optimizer) is not optimizer
    optimizer.accum_iters = 2
    assert optimizer.accum_iters == inner(optimizer).accum_iters == 2
    fit(model, MICRO, [a[: 5 * MICRO] for a in float32_data()], epochs=1)
    assert (optimizer.completed_updates, optimizer.window_position) == (2, 1)
    optimizer.accum_iters = 3
    assert inner(optimizer).accum_iters == 3
    optimizer.apply_partial_window()
    assert (inner(optimizer).completed_updates, optimizer.window_position) == (3, 0)
    optimizer.lr = 0.25
    assert float(hosts.array(inner(optimizer).learning_rate)) == 0.25


def test_weigh_reaches_the_inner_optimizer():
    optimizer = hosts.loss_scaled(hosts.ours("SGD", accum_iters=2, reduction="weighted"), 4.0)
    optimizer.weigh(3.0)
    assert inner(optimizer)._accumulation.said.take("weigh") == 3.0
    with pytest.raises(ValueError, match="weight=-1"):
        optimizer.weigh(-1)


def test_a_stock_optimizer_inside_has_none_of_the_attributes():
    optimizer = hosts.loss_scaled(hosts.stock("SGD"), 4.0)
    assert not hasattr(optimizer, "completed_updates")
    with pytest.raises(AttributeError):
        optimizer.apply_partial_window()


# -- files -----------------------------------------------------------------------------------------


def file_of(tmp_path, **arguments):
    model = model_of(**arguments)
    fit(model, MICRO, [a[: 5 * MICRO] for a in float32_data()], epochs=1)
    path = str(tmp_path / "model.keras")
    model.save(path)
    return model, path


@keras3_only
@pytest.mark.parametrize("accum_iters", [LENGTH, 1])
def test_loaded_where_the_policy_is_not_set(tmp_path, mixed, accum_iters):
    """The whole state is loaded. A warning says that the loss scale isn't used."""
    model, path = file_of(tmp_path, accum_iters=accum_iters)
    set_policy("float32")
    with pytest.warns(UserWarning, match="loss scale"):
        loaded = keras.models.load_model(path)
    assert inner(loaded.optimizer) is loaded.optimizer
    expected = inner(model.optimizer).get_state()
    assert expected["completed_updates"] == 5 // accum_iters
    assert_equal(loaded.optimizer.get_state(), expected, rtol=0, atol=0)
    fit(loaded, MICRO, float32_data(), epochs=1)


class Save(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(self.path)


@keras3_only
@pytest.mark.parametrize("when", ["in the training", "after it"])
def test_a_file_of_a_training_with_a_monitor_has_the_loss_scale(tmp_path, when):
    hosts.set_floatx("float32")
    path = str(tmp_path / "model.keras")
    wrapped = hosts.loss_scaled(hosts.ours("Adam", accum_iters=LENGTH), 64.0)
    model = compiled(dense_model(), wrapped, hosts.mean_squared_error())
    used = [hosts.accum.AccumulationMonitor()] + [Save(path)] * (when == "in the training")
    fit(model, MICRO, float32_data(), epochs=1, callbacks=used)
    if when == "after it":
        model.save(path)
    assert not any("norm" in v.name for v in model.optimizer.variables)
    loaded = keras.models.load_model(path)
    assert float(hosts.array(loaded.optimizer.dynamic_scale)) == 64
    assert len(loaded.optimizer.variables) == len(wrapped.variables)
    for actual, expected in zip(loaded.optimizer.variables, wrapped.variables):
        np.testing.assert_array_equal(hosts.array(actual), hosts.array(expected))
    fit(loaded, MICRO, float32_data(), epochs=1, callbacks=used)
    fit(model, MICRO, float32_data(), epochs=1, callbacks=used)
    assert_equal(numbered(loaded), numbered(model))


def numbered(model):
    return dict(enumerate(weights(model).values()))
