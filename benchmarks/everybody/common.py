"""What all columns of the table of everybody share: the data, the first weights and the cases.

A tiny network trains with micro-batches of 2 in windows of 4, against the stock optimizer of the
same framework with batches of 8, on a CPU in float64, except runai, which is float32. A number is
the largest difference of a weight.

This module runs on Python 3.7, and imports no framework.
"""

import json
import sys
from pathlib import Path

import numpy as np

K, MICRO, WINDOWS, STEPS = 4, 2, 3, 5
BIG = K * MICRO
RATE, DECAY, CLIP, AVERAGE = 0.05, 0.1, 0.1, 0.5
LEFT_OVER = 2  # micro-batches in the last window
STOP = K + 2  # micro-batches before a training is stopped
INFINITE = K + 1  # the micro-batch with an infinite gradient

ROWS = {
    "schedule": "schedule counts updates",
    "clipping": "clipping by global norm",
    "decay": "decoupled weight decay",
    "tokens": "unequal numbers of tokens",
    "last": "last window of 2 in place of 4",
    "continued": "stopped in a window, continued",
    "average": "average of weights",
    "missing": "a gradient missing in some micro-batches",
    "infinite": "an infinite gradient, left out",
    "normalization": "batch normalization",
    "constraint": "max_norm constraint",
    "replicas": "MirroredStrategy, 2 replicas",
    "callbacks": "calls at the end of a step, in 3 updates",
}
GROUPS = "keras3", "optax", "torch", "tf_keras_2_15", "keras2"
RESULTS = Path(__file__).resolve().parent.parent / "results"
EXACT = {"float64": 1e-9, "float32": 1e-6}


class Data:
    """Samples, and which micro-batches they are in."""

    def __init__(self, windows=WINDOWS, more=0, tokens=False, heads=False, floatx="float64"):
        random = np.random.RandomState(1)
        self.count = windows * K + more
        size = self.count * MICRO
        shape = (size, STEPS) if tokens else (size,)
        self.x = random.uniform(-1, 1, (*shape, 3)).astype(floatx)
        self.y = random.uniform(1, 2, (*shape, 2)).astype(floatx)
        # The first micro-batch of a window has the fewest tokens.
        lengths = 1 + np.arange(size) % BIG * STEPS // BIG
        mask = np.arange(STEPS) < lengths[:, None] if tokens else np.ones(size)
        self.mask = mask.astype(floatx)
        self.heads = (np.arange(size) // MICRO % 2 if heads else np.zeros(size)).astype("int64")

    def parts(self, size):
        """A list of (x, y, mask, heads)."""
        arrays = self.x, self.y, self.mask, self.heads
        starts = range(0, len(self.x), size)
        return [tuple(array[i : i + size] for array in arrays) for i in starts]


def start(floatx="float64"):
    """The first weights, as {name: array}."""
    random = np.random.RandomState(2)
    shapes = {"hidden": (3, 4), "hidden_bias": (4,), "out": (4, 2), "out_bias": (2,)}
    shapes.update(other=(4, 2), other_bias=(2,))
    return {n: random.uniform(0.2, 0.6, s).astype(floatx) for n, s in shapes.items()}


def rate_of(update):
    return RATE * 0.5**update


def difference(some, others):
    pairs = list(zip(some, others))
    assert pairs and len(some) == len(others)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def said(result, exact):
    """A result as a cell of the table."""
    if isinstance(result, str):
        return result
    if not np.isfinite(result):
        return "not finite"
    return "exact" if result < exact else f"{result:.0e}"


def cells(column, floatx="float64"):
    """{row: cell} of an object that has a method for each row that its package has."""
    found = {}
    for row in ROWS:
        try:
            result = (getattr(column, row, None) or (lambda: "-"))()
        except Exception as error:  # a package may fail in any way
            result = f"error: {type(error).__name__}"
            print(f"{type(column).__name__}, {row}: {error!r}"[:500], file=sys.stderr)
        found[row] = said(result, EXACT[floatx])
    return found


def table():
    """The table of benchmarks/README.md, and its versions."""
    columns, versions = {}, {}
    for group in GROUPS:
        found = json.loads((RESULTS / f"everybody_{group}.json").read_text("utf-8"))
        columns.update(found["columns"])
        versions.update(found["versions"])
    lines = [f"| case | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for row, what in ROWS.items():
        lines.append(f"| {what} | {' | '.join(column[row] for column in columns.values())} |")
    return "\n".join([*lines, "", ", ".join(" ".join(pair) for pair in versions.items())])
