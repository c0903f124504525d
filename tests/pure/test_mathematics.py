"""The code in docs/mathematics.md against plain loops over big batches; the pictures of docs/."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mathematics import CLIP, CODE, LEAST, micro_batch, optimizer, start, stock

from keras_accum import window

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text("utf-8")
SIZE, UPDATES = 4, 12


def test_it_is_ten_lines():
    assert len(CODE.splitlines()) == 10


def data(samples, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(samples, 3))
    return x, np.sin(x @ [1.0, -2.0, 0.5])


def gradient(weights, x, y):
    """The gradient of the mean of squares of a small model that isn't linear."""
    predicted = np.tanh(x @ weights)
    return 2 * ((predicted - y) * (1 - predicted**2)) @ x / len(x)


def big_batches(batches, gradient=gradient):
    """The plain loop: one stock update for each batch."""
    weights, slots = start()
    for updates, (x, y) in enumerate(batches):
        weights, slots = stock(gradient(weights, x, y), weights, slots, updates)
    return weights, slots


def split(x, y, sizes):
    ends = np.cumsum(sizes)
    assert ends[-1] <= len(x)
    return [(x[end - size : end], y[end - size : end]) for size, end in zip(sizes, ends)]


def assert_equal(o, expected):
    weights, slots = expected
    assert not np.allclose(o.weights, start()[0], atol=1e-2)
    np.testing.assert_allclose(o.weights, weights, rtol=0, atol=1e-13)
    np.testing.assert_allclose(o.slots, slots, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "lengths", [lambda t: 1, lambda t: 5, lambda t: 1 + t // 2], ids=["one", "five", "growing"]
)
def test_windows(lengths):
    sizes = [SIZE * lengths(t) for t in range(UPDATES)]
    x, y = data(sum(sizes))
    o = optimizer(lengths)
    for batch in split(x, y, [SIZE] * (sum(sizes) // SIZE)):
        before = o.updates, o.weights, o.slots
        micro_batch(o, gradient(o.weights, *batch))
        # Inside a window nothing moves.
        assert o.position == 0 or before == (o.updates, o.weights, o.slots)
    assert (o.updates, o.position) == (UPDATES, 0)
    assert_equal(o, big_batches(split(x, y, sizes)))


def test_the_data_have_something_to_clip_and_to_constrain():
    x, y = data(SIZE * UPDATES)
    weights, slots = start()
    clipped, constrained = set(), set()
    for updates, batch in enumerate(split(x, y, [SIZE] * UPDATES)):
        average = gradient(weights, *batch)
        weights, slots = stock(average, weights, slots, updates)
        clipped.add(bool(np.linalg.norm(average) > CLIP))
        constrained.add(bool((weights == LEAST).any()))
    assert clipped == constrained == {False, True}


def test_the_sum():
    def of_the_sum(weights, x, y):
        return gradient(weights, x, y) * len(x) / 12  # not so large that all updates are clipped

    x, y = data(60)
    o = optimizer(lambda t: 3, "sum")
    for batch in split(x, y, [SIZE] * 15):
        micro_batch(o, of_the_sum(o.weights, *batch))
    assert_equal(o, big_batches(split(x, y, [3 * SIZE] * 5), of_the_sum))


def test_weights():
    """Micro-batches of unequal size are the big batch if their sizes are their weights."""
    sizes = [4, 1, 2] * 4
    x, y = data(28)
    batches, big = split(x, y, sizes), big_batches(split(x, y, [7] * 4))
    weighted, mean = optimizer(lambda t: 3), optimizer(lambda t: 3)
    for batch in batches:
        micro_batch(weighted, gradient(weighted.weights, *batch), weight=len(batch[0]))
        micro_batch(mean, gradient(mean.weights, *batch))
    assert_equal(weighted, big)
    assert abs(mean.weights - big[0]).max() > 1e-3


def test_partial_windows():
    """Two epochs of 7 micro-batches in windows of 5: 5, 2, 5, 2 or, carried over, 5, 5 and 4."""
    x, y = data(28)
    early, carried = optimizer(lambda t: 5), optimizer(lambda t: 5)
    for _ in range(2):
        for batch in split(x, y, [SIZE] * 7):
            micro_batch(early, gradient(early.weights, *batch))
            micro_batch(carried, gradient(carried.weights, *batch))
        for _ in range(2):  # the second call finds no open window
            micro_batch(early, None, counts=False, closes=True)
    x, y = np.concatenate([x, x]), np.concatenate([y, y])
    assert_equal(early, big_batches(split(x, y, [20, 8, 20, 8])))
    assert carried.position == 4
    assert_equal(carried, big_batches(split(x, y, [20, 20])))


def test_windows_that_only_the_caller_closes():
    x, y = data(32)
    o = optimizer(lambda t: np.inf)
    for batch, closes in zip(split(x, y, [SIZE] * 8), [0, 0, 1, 1, 0, 1, 0, 0]):
        micro_batch(o, gradient(o.weights, *batch), closes=closes)
    assert (o.updates, o.position) == (3, 2)
    assert_equal(o, big_batches(split(x, y, [12, 4, 8])))


def test_the_counters_are_those_of_the_package():
    """The page's windows close where `keras_accum.window` closes them, for all kinds of calls."""
    random = np.random.default_rng(0)
    o = optimizer(None)
    position = length = 0
    kinds = set()
    for _ in range(400):
        next_length = int(random.integers(1, 6))  # may be set at any time
        o.accum_iters = lambda updates, length=next_length: length
        counts, closes = random.random(2) < [0.8, 0.2]
        updates = o.updates
        counters = position, length, next_length
        step = window.advance(np, counters, int(counts), int(closes))
        micro_batch(o, np.ones(3), counts=counts, closes=closes)
        position, length = int(step.position), int(step.length)
        assert (o.position, o.length) == (position, length)
        assert o.updates - updates == step.switch
        kinds.add((bool(counts), bool(closes), int(step.switch)))
    impossible = {(False, False, 1), (True, True, 0)}
    assert kinds == {*itertools.product((False, True), (False, True), (0, 1))} - impossible


# -- the picture, and the first screen -----------------------------------------------------------


def test_the_picture_is_what_its_script_draws():
    script = [sys.executable, str(PROJECT / "docs" / "draw_window.py")]
    drawn = subprocess.run(script, stdout=subprocess.PIPE, check=True).stdout
    kept = (PROJECT / "docs" / "images" / "window.svg").read_bytes()
    assert drawn.decode().splitlines() == kept.decode().splitlines(), "draw it again"


def test_what_changes_in_a_script():
    """The two lines of README's diff differ in the optimizer and in the batch size alone."""
    (diff,) = re.findall(r"```diff\n(.*?)```", README, re.S)
    before, after = (re.findall(rf"^\{sign}(.*)$", diff, re.M) for sign in "-+")
    assert len(before) == len(after) == 2 and len(diff.splitlines()) == 4
    (accum_iters,) = re.findall(r"AdamAccumulate\(accum_iters=(\d+)\)", after[0])
    assert before[0] == re.sub(r"AdamAccumulate\(.*?\)", "keras.optimizers.Adam()", after[0])
    (big,), (small,) = (re.findall(r"batch_size=(\d+)", lines[1]) for lines in (before, after))
    assert int(big) == int(small) * int(accum_iters)
    assert before[1].replace(big, small) == after[1]
