"""What docs/cost.md says of other ways to save the memory of a sum."""

import numpy as np
import pytest

K = 16
ALIKE, NOISE = np.full((K, 1), 0.5), np.random.default_rng(0).normal(size=(K, 10000))


def test_folding_into_momentum_is_exact_for_sgd():
    decay, folded = 0.9, 0.9 * 0.25
    for gradient in NOISE[:, 0]:
        folded += gradient / K
    assert folded == pytest.approx(decay * 0.25 + NOISE[:, 0].mean(), abs=1e-12)


@pytest.mark.parametrize("window, longer", [(ALIKE, K**0.5), (NOISE, 1)], ids=["alike", "noise"])
def test_the_second_moment_of_squares_makes_steps_longer(window, longer):
    """The first step of AdamA, whose gradients are those of the loss divided by k."""
    parts = window / K
    squares, square = (parts**2).sum(0), parts.sum(0) ** 2
    assert np.sqrt(square.mean() / squares.mean()) == pytest.approx(longer, rel=0.05)


def test_a_sum_in_bfloat16_stops_growing():
    """In its 8 bits, 256 + 1 is half way between two numbers, and the even one is 256."""
    bits = np.float32(257).view(np.uint32)
    assert bits & 0xFFFF == 0x8000 and (bits >> 16) & 1 == 0
    assert (bits & np.uint32(0xFFFF0000)).view(np.float32) == 256
