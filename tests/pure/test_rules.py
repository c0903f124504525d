"""The rules on NumPy: a switch of 0 is an identity."""

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
