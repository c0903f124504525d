"""What docs/do_you_need_accumulation.md says of other ways to save the memory of a sum."""

import sys

import numpy as np
import pytest

if sys.version_info < (3, 10):
    pytest.skip("a test of the documents, for Python 3.10 and later", allow_module_level=True)

K = 16
ALIKE, NOISE = np.full((K, 1), 0.5), np.random.default_rng(0).normal(size=(K, 10000))


def test_folding_into_momentum_is_exact_for_sgd():
    window, decay, slot = NOISE[:, 0], 0.9, 0.25
    folded = decay * slot
    for gradient in window:
        folded += gradient / K
    assert folded == pytest.approx(decay * slot + window.mean(), abs=1e-12)


def adam(first, second):
    return first / np.sqrt(second)


@pytest.mark.parametrize("window, longer", [(ALIKE, K**0.5), (NOISE, 1)], ids=["alike", "noise"])
def test_the_second_moment_of_squares_makes_steps_longer(window, longer):
    """The first step of AdamA, whose gradients are those of the loss divided by k."""
    parts = window / K
    squares, square = (parts**2).sum(0), parts.sum(0) ** 2
    ratio = np.sqrt(square.mean() / squares.mean())
    assert ratio == pytest.approx(longer, rel=0.05)
    assert adam(parts.sum(0), squares)[0] / adam(parts.sum(0), square)[0] <= K**0.5 * 1.001


def bfloat16(value):
    """Round to the 8 bits of bfloat16, to even in a tie."""
    bits = np.float32(value).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


def test_a_sum_in_bfloat16_stops_growing():
    total = np.float32(0)
    for _ in range(1000):
        total = bfloat16(total + 1)
    assert total == 256
