"""The rules on NumPy: two updates by hand, and a switch of 0 is an identity."""

import numpy as np
import pytest

from keras_accum.tensorflow import rules


class Ops:
    """The namespace of operations that a rule needs."""

    maximum, sqrt, where = np.maximum, np.sqrt, np.where

    @staticmethod
    def cast(value, dtype):
        return np.asarray(value, dtype)[()]


# SGD and Adam are kernels of TensorFlow.
RULES = {
    "amsgrad": (rules.AMSGrad(), {"beta_1": 0.5, "beta_2": 0.75, "epsilon": 0}),
    "rmsprop": (rules.RMSprop(False, False, True), {"rho": 0.75, "momentum": 0, "epsilon": 0}),
    "rmsprop_outside": (
        rules.RMSprop(False, False, False),
        {"rho": 0.75, "momentum": 0, "epsilon": 1},
    ),
    "rmsprop_inside": (
        rules.RMSprop(False, False, True),
        {"rho": 0.75, "momentum": 0, "epsilon": 3},
    ),
    "rmsprop_momentum": (
        rules.RMSprop(True, False, True),
        {"rho": 0.75, "momentum": 0.5, "epsilon": 0},
    ),
    "rmsprop_centered": (
        rules.RMSprop(False, True, True),
        {"rho": 0.5, "momentum": 0, "epsilon": 0},
    ),
}

# (parameter, *slots) after each of two updates, from parameter 1 and slots 0, by gradients 2 and 4,
# at a learning rate of 0.1. Each can be followed on paper.
ROOT = np.sqrt
GOLDEN = {
    # m = 1, v = 1, alpha = 0.1 * 0.5 / 0.5; m = 2.5, v = 4.75, alpha = 0.1 * sqrt(7/16) / 0.75
    "amsgrad": [
        (0.9, 1, 1, 1),
        (0.9 - 0.1 * ROOT(7) / 3 * 2.5 / ROOT(4.75), 2.5, 4.75, 4.75),
    ],
    # v = 1; v = 0.75 + 4
    "rmsprop": [(0.8, 1), (0.8 - 0.4 / ROOT(4.75), 4.75)],
    "rmsprop_outside": [(0.9, 1), (0.9 - 0.4 / (ROOT(4.75) + 1), 4.75)],
    "rmsprop_inside": [(0.9, 1), (0.9 - 0.4 / ROOT(7.75), 4.75)],
    # u = 0.2; u = 0.1 + 0.4 / sqrt(4.75)
    "rmsprop_momentum": [
        (0.8, 1, 0.2),
        (0.7 - 0.4 / ROOT(4.75), 4.75, 0.1 + 0.4 / ROOT(4.75)),
    ],
    # v = 2, a = 1: root of 1; v = 9, a = 2.5: root of 2.75
    "rmsprop_centered": [(0.8, 2, 1), (0.8 - 0.4 / ROOT(2.75), 9, 2.5)],
}


def step(name, switch, update, gradient, state):
    rule, hyperparameters = RULES[name]
    switch, rate = np.float64(switch), np.float64(0.1)
    c = rule.coefficients(Ops, switch, rate, np.float64(update), **hyperparameters)
    return rule.step(Ops, c, np.float64(gradient), *state)


def start(name):
    return (np.float64(1),) + (np.float64(0),) * len(RULES[name][0].slots)


@pytest.mark.parametrize("name", RULES)
def test_two_updates_by_hand(name):
    state = start(name)
    for update, (gradient, expected) in enumerate(zip((2, 4), GOLDEN[name]), 1):
        state = step(name, 1, update, gradient, state)
        np.testing.assert_allclose(state, expected, rtol=1e-14)


def test_amsgrad_keeps_the_largest_second_moment():
    state = start("amsgrad")
    for update, gradient in enumerate((8, 0.5), 1):
        state = step("amsgrad", 1, update, gradient, state)
    parameter, momentum, velocity, velocity_hat = state
    assert velocity < velocity_hat == 16


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", RULES)
def test_switch_at_zero_is_an_identity(name, dtype):
    """To the bit, for numbers of any size and for fresh slots, though epsilon is 0 in most rows."""
    rule, hyperparameters = RULES[name]
    random = np.random.default_rng(0)
    sizes = 10.0 ** random.integers(-4, 4, (1 + len(rule.slots), 1000))
    state = (random.normal(size=sizes.shape) * sizes).astype(dtype)
    state[1:] = abs(state[1:])  # second moments aren't negative
    if "average_gradient" in rule.slots:
        state[-1] = np.sqrt(state[1] / 2)  # nor less than the square of the first moment
    if name == "amsgrad":
        state[3] = np.maximum(state[2], state[3])
    for slots in (state[1:], np.zeros_like(state[1:])):
        one, zero = np.ones([], dtype), np.zeros([], dtype)
        c = rule.coefficients(Ops, zero, one, one, **hyperparameters)
        c = {key: np.asarray(value, dtype) for key, value in c.items()}
        with np.errstate(all="raise", under="ignore"):
            new = rule.step(Ops, c, np.zeros(1000, dtype), state[0], *slots)
        for after, before in zip(new, (state[0], *slots)):
            assert after.dtype == dtype
            np.testing.assert_array_equal(after, before)
