"""The rules by themselves: a switch of 0 is an identity."""

import hosts
import numpy as np
import pytest

if not hosts.IS_LEGACY:
    pytest.skip("elsewhere are no rules, or no eager tensors", allow_module_level=True)

import tensorflow as tf

from keras_accum.tensorflow import rules

BETAS = {"beta_1": 0.5, "beta_2": 0.75, "epsilon": 0}
RULES = {
    "sgd": (rules.SGD(momentum=0, nesterov=False), {"momentum": 0}),
    "nesterov": (rules.SGD(momentum=0.5, nesterov=True), {"momentum": 0.5}),
    "adam": (rules.Adam(), BETAS),
    "amsgrad": (rules.AMSGrad(), BETAS),
    "rmsprop": (rules.RMSprop(False, False, True), {"rho": 0.75, "momentum": 0, "epsilon": 0}),
    "outside": (rules.RMSprop(False, False, False), {"rho": 0.75, "momentum": 0, "epsilon": 1}),
    "inside": (rules.RMSprop(False, False, True), {"rho": 0.75, "momentum": 0, "epsilon": 3}),
    "momentum": (rules.RMSprop(True, False, True), {"rho": 0.75, "momentum": 0.5, "epsilon": 0}),
    "centered": (rules.RMSprop(False, True, True), {"rho": 0.5, "momentum": 0, "epsilon": 0}),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", RULES)
def test_switch_at_zero_is_an_identity(name, dtype):
    """To the bit, for numbers of any size and for fresh slots, though epsilon is 0 in most rows."""
    rule, hyperparameters = RULES[name]
    random = np.random.default_rng(0)
    sizes = 10.0 ** random.integers(-4, 4, (1 + len(rule.slots), 1000))
    weights, *slots = (random.normal(size=sizes.shape) * sizes).astype(dtype)
    slots = np.abs(slots)  # second moments aren't negative
    if "average_gradient" in rule.slots:
        slots[-1] = np.sqrt(slots[0] / 2)  # nor less than the square of the first moment
    if name == "amsgrad":
        slots[2] = np.maximum(slots[1], slots[2])
    one, zero = tf.ones([], dtype), tf.zeros([], dtype)
    hyperparameters = {n: tf.constant(value, dtype) for n, value in hyperparameters.items()}
    scalars = rule.scalars(zero, one, one, **hyperparameters)
    for before in ((weights, *slots), (weights, *np.zeros_like(slots))):
        variables = [tf.Variable(array) for array in before]
        rule.apply(scalars, tf.zeros(1000, dtype), variables[0], variables[1:])
        for variable, old in zip(variables, before):
            np.testing.assert_array_equal(variable.numpy(), old)
