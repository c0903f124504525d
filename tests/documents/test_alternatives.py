"""What docs/cost.md says of other ways to save a sum's memory, compared with our optimizers."""

import hosts
import numpy as np
import pytest
from cases import once

pytestmark = once

K, WINDOWS, RATE = 16, 3, 2**-3
RANDOM = np.random.default_rng(0)
NOISE = RANDOM.normal(size=(K * WINDOWS, 1000)).astype("float32")
ALIKE = np.full_like(NOISE, 0.5)


def trained(optimizer, gradients):
    """Return how far the micro-batches have moved a weight."""
    w = hosts.variable(np.zeros_like(gradients[0]), "w")
    for gradient in gradients:
        hosts.apply(optimizer, [gradient], [w])
    return hosts.array(w)


def test_folding_into_momentum_is_exact_for_sgd():
    """The velocity takes each gradient at once."""
    w = velocity = np.zeros_like(NOISE[0], "float64")
    for window in NOISE.reshape(WINDOWS, K, -1):
        velocity = 0.9 * velocity
        for gradient in window:
            velocity = velocity - RATE * gradient / K
        w = w + velocity
    ours = hosts.ours("SGD", learning_rate=RATE, momentum=0.9, accum_iters=K)
    np.testing.assert_allclose(trained(ours, NOISE), w, **hosts.TOLERANCE)


@pytest.mark.parametrize("gradients, longer", [(ALIKE, K**0.5), (NOISE, 1)], ids=["alike", "noise"])
def test_the_second_moment_of_squares_makes_steps_longer(gradients, longer):
    """The first step of AdamA, whose gradients are those of the loss divided by k."""
    parts = gradients[:K] / K
    first, second = parts.sum(0), (parts**2).sum(0)  # bias correction leaves these
    step = np.abs(RATE * first / np.sqrt(second))
    ours = np.abs(trained(hosts.ours("Adam", learning_rate=RATE, accum_iters=K), gradients[:K]))
    ratio = step / ours
    assert ratio.max() <= K**0.5 * (1 + 1e-4)
    assert np.sqrt((ratio**2).mean()) == pytest.approx(longer, rel=0.05)


def test_a_sum_in_bfloat16_stops_growing():
    """256 + 1 is half way between two numbers of 8 bits. Ours are float32 for such weights."""
    ops, w = hosts.keras.ops, hosts.variable([0.0], "w", "bfloat16")
    total, one = (ops.convert_to_tensor([value], "bfloat16") for value in (256.0, 1.0))
    assert float((total + one)[0]) == 256
    ours = hosts.ours("SGD", learning_rate=1.0, accum_iters=512)
    ours.build([w])
    window = {"window_length": 512, "window_position": 256, "accumulator.0": np.array([256.0])}
    ours.set_state({**ours.get_state(), **window})
    hosts.apply(ours, [one], [w])
    (accumulator,) = hosts.accumulators(ours)
    assert hosts.array(accumulator) == 257
