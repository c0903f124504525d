"""A LossScaleOptimizer around ours, also when `compile` adds it by itself."""

import hosts
import numpy as np
import pytest
from cases import skip_file_on_keras2
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, inner

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
    callbacks = [hosts.accum.ApplyPartialWindow()]
    fit(model, MICRO, [a[: 5 * MICRO] for a in float32_data()], epochs=1, callbacks=callbacks)
    assert (optimizer.completed_updates, optimizer.window_position) == (5, 0)
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


@pytest.mark.skipif(hosts.IS_KERAS3 and hosts.BACKEND == "jax", reason="about a loop in Python")
def test_close_window_of_a_skipped_micro_batch_is_dropped():
    inner, w = hosts.ours("SGD", accum_iters=4), hosts.variable([1.0, 2.0], "w")
    optimizer = hosts.loss_scaled(inner, 1.0)
    found = []
    for gradient, closes in ([1.0, False], [np.nan, True], [1.0, False], [1.0, True]):
        if closes:
            inner.close_window()
        hosts.apply(optimizer, [np.full(2, gradient, hosts.FLOATX)], [w])
        found.append(inner.window_position)
    assert found == [1, 1, 2, 0]
