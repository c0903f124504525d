"""Adam's fused kernel of TensorFlow rounds 1 - beta_2. On Keras 3, stock Adam doesn't."""

import hosts
import numpy as np
import pytest
from cases import thorough
from training import assert_equal

pytestmark = pytest.mark.skipif(
    not (hosts.IS_KERAS3 and hosts.IS_TENSORFLOW),
    reason="stock Adam of Keras 2 has the same kernel, and other backends have none",
)

UPDATES = 100


def run(optimizer, gradients, floatx):
    """Return the weights and, as the bias correction rounds in half precision, the slots."""
    w = hosts.variable([1.0, -1.0, 2.0, 3.0], "w", floatx)
    for gradient in gradients:
        hosts.apply(optimizer, [hosts.native(hosts.variable(gradient, "g", floatx)) + 0], [w])
    slots = {name: hosts.array(v) for name, v in hosts.slots(optimizer, [w]).items()}
    return {name: np.asarray(v, "float64") for name, v in {"w": hosts.array(w), **slots}.items()}


@pytest.mark.parametrize("name", ["Adam", pytest.param("AdamW", marks=thorough)])
@pytest.mark.parametrize("gate", ["select", pytest.param("conditional", marks=thorough)])
@pytest.mark.parametrize("floatx, rtol", [("float32", 1e-6), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_many_updates(name, gate, floatx, rtol):
    """Each update moves a weight by about 0.03."""
    gradients = np.random.default_rng(3).uniform(0.5, 1, (UPDATES, 4))
    arguments = {"learning_rate": 2**-5, "epsilon": 2**-10}
    expected = run(hosts.stock(name, **arguments), gradients, floatx)
    ours = hosts.ours(name, accum_iters=2, gate=gate, **arguments)
    actual = run(ours, np.repeat(gradients, 2, axis=0), floatx)
    if floatx == "float32":  # the kernel's slots are the stock slots times a constant
        actual, expected = {"w": actual["w"]}, {"w": expected["w"]}
    assert_equal(actual, expected, rtol=rtol, atol=rtol)
