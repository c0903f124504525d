"""The code in docs/mathematics.md against plain loops over big batches, and against the package."""

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mathematics import CLIP, CODE, LEAST, micro_batch, optimizer, start, stock

from keras_accum import window

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_it_is_ten_lines():
    assert len(CODE.splitlines()) == 10


def mean_gradient(weights, x, y):
    """The gradient of the mean of squares of a small model that isn't linear."""
    predicted = np.tanh(x @ weights)
    return 2 * ((predicted - y) * (1 - predicted**2)) @ x / len(x)


def sum_gradient(weights, x, y):
    return mean_gradient(weights, x, y) * len(x) / 12  # not so large that all updates are clipped


def batches(sizes):
    random = np.random.default_rng(0)
    x = random.normal(size=(sum(sizes), 3))
    y = np.sin(x @ [1.0, -2.0, 0.5])
    ends = np.cumsum(sizes)[:-1]
    return list(zip(np.split(x, ends), np.split(y, ends)))


def big_batches(sizes, gradient):
    """The plain loop: one stock update for each batch."""
    weights, slots = start()
    for updates, batch in enumerate(batches(sizes)):
        weights, slots = stock(gradient(weights, *batch), weights, slots, updates)
    return weights, slots


def row(accum_iters, sizes, big, **more):
    """A training: the length K, the sizes of micro-batches, and the sizes of big batches.

    The caller closes windows `with_` some micro-batches, or `after` some, counted from 1.
    """
    nothing = {"reduction": "mean", "with_": (), "after": (), "position": 0}
    return SimpleNamespace(accum_iters=accum_iters, sizes=sizes, big=big, **{**nothing, **more})


ROWS = {
    "one": row(lambda t: 1, [4] * 12, [4] * 12),
    "five": row(lambda t: 5, [4] * 60, [20] * 12),
    "growing": row(lambda t: 1 + t // 2, [4] * 42, [4 * (1 + t // 2) for t in range(12)]),
    "sum": row(lambda t: 3, [4] * 15, [12] * 5, reduction="sum"),
    "weights": row(lambda t: 3, [4, 1, 2] * 4, [7] * 4),
    "a partial window": row(lambda t: 5, [4] * 14, [20, 8, 20, 8], after=(7, 14)),
    "an open window": row(lambda t: 5, [4] * 14, [20, 20], position=4),
    "the caller": row(lambda t: np.inf, [4] * 8, [12, 4, 8], with_=(3, 4, 6), position=2),
}


@pytest.mark.parametrize("name", ROWS)
def test_windows_equal_big_batches(name):
    row = ROWS[name]
    gradient = sum_gradient if row.reduction == "sum" else mean_gradient
    o = optimizer(row.accum_iters, row.reduction)
    for number, batch in enumerate(batches(row.sizes), 1):
        before = o.updates, o.weights, o.slots
        weight = len(batch[0]) / 4
        micro_batch(o, gradient(o.weights, *batch), weight, closes=number in row.with_)
        assert o.position == 0 or before == (o.updates, o.weights, o.slots)
        for _ in range(2 * (number in row.after)):  # the second call finds no open window
            micro_batch(o, None, counts=False, closes=True)
    weights, slots = big_batches(row.big, gradient)
    assert (o.updates, o.position) == (len(row.big), row.position)
    assert not np.allclose(weights, start()[0], atol=1e-2)
    np.testing.assert_allclose(o.weights, weights, rtol=0, atol=1e-13)
    np.testing.assert_allclose(o.slots, slots, rtol=0, atol=1e-13)


def test_the_data_have_something_to_clip_and_to_constrain():
    clipped, constrained = set(), set()
    for updates in range(1, 12):
        weights, _ = big_batches([4] * updates, mean_gradient)
        next_batch = batches([4] * 12)[updates]
        clipped.add(bool(np.linalg.norm(mean_gradient(weights, *next_batch)) > CLIP))
        constrained.add(bool((weights == LEAST).any()))
    assert clipped == constrained == {False, True}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_counters_are_those_of_the_package(reduction):
    """The package closes the page's windows and scales its sums, for all kinds of calls."""
    random = np.random.default_rng(0)
    o = optimizer(None, reduction)
    o.stock = lambda average, *_: (average, None)
    position = length = total = 0
    kinds = set()
    for _ in range(400):
        next_length = int(random.integers(1, 6))  # may be set at any time
        o.accum_iters = lambda updates, length=next_length: length
        counts, closes = map(int, random.random(2) < [0.8, 0.2])
        updates, gradient = o.updates, random.normal(size=3)
        step = window.advance(np, (position, length, next_length), counts, closes)
        micro_batch(o, gradient, counts=counts, closes=counts and closes)
        position, length, total = int(step.position), int(step.length), total + counts * gradient
        assert (o.position, o.length) == (position, length)
        assert o.updates - updates == step.switch
        with np.errstate(all="raise"):  # no micro-batch may have been counted
            scale = window.scale(np, step, reduction, np.float64)
        if step.switch:
            np.testing.assert_allclose(o.weights, total * scale, rtol=0, atol=1e-13)
            total = 0
        assert step.switch or scale == 0
        kinds.add((counts, closes, int(step.switch)))
    assert kinds == {*itertools.product((0, 1), repeat=3)} - {(0, 0, 1), (0, 1, 1), (1, 1, 0)}


def test_the_picture_is_what_its_script_draws():
    script = [sys.executable, str(DOCS / "draw_window.py")]
    drawn = subprocess.run(script, stdout=subprocess.PIPE, check=True).stdout
    kept = (DOCS / "images" / "window.svg").read_bytes()
    assert drawn.decode().splitlines() == kept.decode().splitlines(), "draw it again"
