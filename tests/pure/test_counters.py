"""The counters of a window by themselves: when it closes, and what its sum is divided by."""

import numpy as np
import pytest

from keras_accum import window


class Ops:
    """The namespace that a window asks for."""

    equal, where = np.equal, np.where


def run(counted, accum_iters, position=0, length=1):
    """The steps of micro-batches, of which those with a 0 in `counted` are dropped.

    `accum_iters` is a number, or that of each micro-batch.
    """
    lengths = np.broadcast_to(accum_iters, len(counted))
    steps = []
    for count, wanted in zip(counted, lengths):
        steps.append(window.advance(Ops, position, length, wanted, count))
        length, position = steps[-1].length, steps[-1].position
    return steps


def column(steps, name):
    return [int(getattr(step, name)) for step in steps]


@pytest.mark.parametrize("accum_iters", [1, 2, 3, 7])
def test_every_so_many_micro_batches(accum_iters):
    steps = run([1] * 21, accum_iters)
    numbers = range(1, 22)
    assert column(steps, "switch") == [int(i % accum_iters == 0) for i in numbers]
    assert column(steps, "position") == [i % accum_iters for i in numbers]
    assert column(steps, "divisor") == [(i - 1) % accum_iters + 1 for i in numbers]


@pytest.mark.parametrize("dropped", [0, 1, 2, 3])
def test_a_dropped_micro_batch_is_as_if_it_had_never_been(dropped):
    counted = [1] * 6
    without = run(counted, 3)
    counted.insert(dropped, 0)
    steps = run(counted, 3)
    step = steps.pop(dropped)
    assert step.switch == 0
    assert step.position == (without[dropped - 1].position if dropped else 0)
    for name in ("switch", "divisor", "position"):
        assert column(steps, name) == column(without, name)


def test_a_new_length_is_the_next_windows():
    steps = run([1] * 9, [4, 2, 2, 2, 2, 2, 3, 3, 3])
    assert column(steps, "length") == [4, 4, 4, 4, 2, 2, 3, 3, 3]
    assert column(steps, "switch") == [0, 0, 0, 1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("accum_iters", [1, 2])
def test_an_open_window_keeps_its_length(accum_iters):
    """Also one that is longer than what it was set to since."""
    (step,) = run([1], accum_iters, position=3, length=5)
    assert (step.switch, step.position, step.length) == (0, 4, 5)


def test_closed_early():
    step = window.close(2, 5)
    assert (step.switch, step.divisor, step.length, step.position) == (1, 2, 5, 0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "weighted"])
def test_what_a_sum_is_scaled_by(reduction):
    """0.0 inside a window; at its end one by the number of micro-batches, or their weight."""
    inside, end = run([1, 1], 2)
    assert window.scale(Ops, inside, reduction, np.float64) == 0
    assert window.scale(Ops, end, reduction, np.float64) == (1 if reduction == "sum" else 0.5)


@pytest.mark.parametrize("reduction", ["mean", "weighted"])
def test_nothing_counted_is_no_division_by_zero(reduction):
    (step,) = run([0], 4)
    with np.errstate(all="raise"):
        assert window.scale(Ops, step, reduction, np.float64) == 0
