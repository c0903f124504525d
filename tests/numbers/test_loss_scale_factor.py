"""Keras 3's `loss_scale_factor` may change in a window: sums are of unscaled gradients."""

import hosts
import numpy as np
import pytest
from training import assert_equal

pytestmark = pytest.mark.skipif(not hosts.IS_KERAS3, reason="an argument of Keras 3")

FIRST, SECOND = np.array([0.5, -1.0], "float32"), np.array([1.5, 3.0], "float32")


def made(factor, **more):
    more.update(learning_rate=0.5, accum_iters=2, loss_scale_factor=factor)
    optimizer = hosts.ours("SGD", **more)
    w = hosts.variable([4.0, 8.0], "w")
    optimizer.build([w])
    return optimizer, w


def micro_batch(optimizer, w, gradient):
    scaled = hosts.array(optimizer.scale_loss(gradient))
    hosts.apply(optimizer, [scaled.astype(hosts.FLOATX)], [w])


def by_attribute(optimizer, w):
    optimizer.loss_scale_factor = 4.0
    return optimizer


def by_state(optimizer, w):
    other = hosts.ours("SGD", learning_rate=0.5, accum_iters=2)
    other.build([w])
    other.set_state(optimizer.get_state())
    return other


def by_conversion(optimizer, w):
    return type(optimizer).from_optimizer(optimizer, loss_scale_factor=8.0)


def by_nothing(optimizer, w):
    return optimizer


def of_version_1_1(optimizer, w):
    """Its sums were scaled."""
    state = optimizer.get_state()
    factor = optimizer.loss_scale_factor
    state.update(state_format=np.asarray(1), **{"accumulator.0": factor * state["accumulator.0"]})
    optimizer.set_state(state)
    assert optimizer.get_state()["state_format"] == 2
    optimizer.set_weights([hosts.array(v) for v in optimizer.variables])
    return optimizer


@pytest.mark.parametrize(
    "change", [by_nothing, by_attribute, by_state, by_conversion, of_version_1_1]
)
@pytest.mark.parametrize("more", [{}, {"skip_norm": 1e3}, {"gate": "conditional"}], ids=str)
def test_another_factor_in_a_window(change, more):
    if hosts.IS_TORCH and "gate" in more:
        pytest.skip("PyTorch is eager")
    optimizer, w = made(64.0, **more)
    micro_batch(optimizer, w, FIRST)
    np.testing.assert_allclose(optimizer.get_state()["accumulator.0"], FIRST)
    optimizer = change(optimizer, w)
    micro_batch(optimizer, w, SECOND)
    assert optimizer.completed_updates == 1
    expected = np.array([4.0, 8.0]) - 0.5 * (FIRST + SECOND) / 2
    assert_equal({"w": hosts.array(w)}, {"w": expected})


def test_a_window_of_keras_has_unscaled_sums():
    """It is taken over as it is."""
    w = hosts.variable([4.0, 8.0], "w")
    arguments = {"loss_scale_factor": 64.0, "gradient_accumulation_steps": 2}
    stock = hosts.stock("SGD", learning_rate=0.5, **arguments)
    stock.build([w])
    micro_batch(stock, w, FIRST)
    ours = hosts.accum.SGDAccumulate.from_optimizer(stock)
    micro_batch(ours, w, SECOND)
    expected = np.array([4.0, 8.0]) - 0.5 * (FIRST + SECOND) / 2
    assert_equal({"w": hosts.array(w)}, {"w": expected})


def test_half_precision_gradients_are_unscaled_in_float32():
    optimizer = hosts.ours("SGD", learning_rate=1.0, accum_iters=2, loss_scale_factor=2.0**15)
    w = hosts.variable([1.0], "w", dtype="float16")
    optimizer.build([w])
    for _ in range(2):
        scaled = hosts.keras.ops.ones((1,), "float16") * 2.0**-10  # of 2**-25
        optimizer.apply([scaled], [w])
        total = optimizer.get_state().get("accumulator.0")
        assert optimizer.window_position == 0 or total == 2.0**-25
