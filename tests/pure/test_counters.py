"""The counters of a window on their own: when it closes, and what its sum is divided by."""

import numpy as np
import pytest

from keras_accum import window


class Ops:
    """The namespace of operations that a window needs."""

    equal, where = np.equal, np.where


def run(counted, accum_iters, position=0, length=1):
    """Return a step for each micro-batch.

    Micro-batches with a 0 in `counted` are dropped. `accum_iters` is one number, or one number per
    micro-batch.
    """
    lengths = np.broadcast_to(accum_iters, len(counted))
    steps = []
    for count, wanted in zip(counted, lengths):
        steps.append(window.advance(Ops, (position, length, wanted), count))
        length, position = steps[-1].length, steps[-1].position
    return steps


def column(steps, name):
    return [int(getattr(step, name)) for step in steps]


@pytest.mark.parametrize("accum_iters", [1, 2, 3, 7])
def test_a_window_closes_after_accum_iters_micro_batches(accum_iters):
    steps = run([1] * 21, accum_iters)
    numbers = range(1, 22)
    assert column(steps, "switch") == [int(i % accum_iters == 0) for i in numbers]
    assert column(steps, "position") == [i % accum_iters for i in numbers]
    assert column(steps, "divisor") == [(i - 1) % accum_iters + 1 for i in numbers]


@pytest.mark.parametrize("dropped", [0, 1, 2, 3])
def test_a_dropped_micro_batch_leaves_no_trace(dropped):
    counted = [1] * 6
    without = run(counted, 3)
    counted.insert(dropped, 0)
    steps = run(counted, 3)
    step = steps.pop(dropped)
    assert step.switch == 0
    assert step.position == (without[dropped - 1].position if dropped else 0)
    for name in ("switch", "divisor", "position"):
        assert column(steps, name) == column(without, name)


def test_a_new_accum_iters_is_the_length_of_the_next_window():
    steps = run([1] * 9, [4, 2, 2, 2, 2, 2, 3, 3, 3])
    assert column(steps, "length") == [4, 4, 4, 4, 2, 2, 3, 3, 3]
    assert column(steps, "switch") == [0, 0, 0, 1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("accum_iters", [1, 2])
def test_an_open_window_keeps_its_length(accum_iters):
    """Even if accum_iters has since become shorter than its position."""
    (step,) = run([1], accum_iters, position=3, length=5)
    assert (step.switch, step.position, step.length) == (0, 4, 5)


def test_a_window_can_be_closed_early():
    step = window.close(2, 5)
    assert (step.switch, step.divisor, step.length, step.position) == (1, 2, 5, 0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "weighted"])
def test_the_scale_of_a_sum(reduction):
    """0 inside a window.

    At its end 1 for a sum, else 1 over the number of micro-batches or their weight.
    """
    inside, end = run([1, 1], 2)
    assert window.scale(Ops, inside, reduction, np.float64) == 0
    assert window.scale(Ops, end, reduction, np.float64) == (1 if reduction == "sum" else 0.5)


@pytest.mark.parametrize("reduction", ["mean", "weighted"])
def test_no_division_by_zero_when_nothing_is_counted(reduction):
    (step,) = run([0], 4)
    with np.errstate(all="raise"):
        assert window.scale(Ops, step, reduction, np.float64) == 0
