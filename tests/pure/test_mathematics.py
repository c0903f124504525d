"""The code in docs/mathematics.md against plain loops over big batches, and against the package."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mathematics import CODE, micro_batch, optimizer

from keras_accum.engine import window
from keras_accum.options import Options

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_it_is_ten_lines():
    assert len(CODE.splitlines()) == 10


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
            scale = window.scale(np, step, Options(reduction=reduction), np.float64)
        if step.switch:
            np.testing.assert_allclose(o.weights, total * scale, rtol=0, atol=1e-13)
            total = 0
        assert step.switch or scale == 0
        kinds.add((counts, closes, int(step.switch)))
    assert kinds == {*itertools.product((0, 1), repeat=3)} - {(0, 0, 1), (0, 1, 1), (1, 1, 0)}


def test_the_picture_is_what_its_script_draws():
    script = [sys.executable, str(DOCS / "site" / "draw_window.py")]
    drawn = subprocess.run(script, stdout=subprocess.PIPE, check=True).stdout
    kept = (DOCS / "images" / "window.svg").read_bytes()
    assert drawn.decode().splitlines() == kept.decode().splitlines(), "draw it again"
