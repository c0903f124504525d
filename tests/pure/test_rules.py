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
    "rmsprop": (rules.RMSprop(False, False, True), {"rho": 0.75, "epsilon": 0}),
    "outside": (rules.RMSprop(False, False, False), {"rho": 0.75, "epsilon": 1}),
    "inside": (rules.RMSprop(False, False, True), {"rho": 0.75, "epsilon": 3}),
    "momentum": (rules.RMSprop(True, False, True), {"rho": 0.75, "momentum": 0.5, "epsilon": 0}),
    "centered": (rules.RMSprop(False, True, True), {"rho": 0.5, "epsilon": 0}),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", RULES)
def test_switch_at_zero_is_an_identity(name, dtype):
    """To the bit, for numbers of any size and for fresh slots, though epsilon is 0 in most rows."""
    rule, hyperparameters = RULES[name]
    if name != "amsgrad":
        hyperparameters = {"momentum": 0, **hyperparameters}
    random = np.random.default_rng(0)
    sizes = 10.0 ** random.integers(-4, 4, (1 + len(rule.slots), 1000))
    weights, *slots = (random.normal(size=sizes.shape) * sizes).astype(dtype)
    slots = np.abs(slots)  # second moments aren't negative
    if "average_gradient" in rule.slots:
        slots[-1] = np.sqrt(slots[0] / 2)  # nor less than the square of the first moment
    if name == "amsgrad":
        slots[2] = np.maximum(slots[1], slots[2])
    one, zero = np.ones([], dtype), np.zeros([], dtype)
    coefficients = rule.coefficients(Ops, zero, one, one, **hyperparameters)
    coefficients = {key: np.asarray(value, dtype) for key, value in coefficients.items()}
    for before in ((weights, *slots), (weights, *np.zeros_like(slots))):
        with np.errstate(all="raise", under="ignore"):
            after = rule.step(Ops, coefficients, np.zeros(1000, dtype), *before)
        for new, old in zip(after, before):
            assert new.dtype == dtype
            np.testing.assert_array_equal(new, old)
