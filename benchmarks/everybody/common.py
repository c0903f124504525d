"""What all columns of the table share: the cases, the data and the first weights.

This module runs on Python 3.7, and imports no framework.
"""

import sys
from dataclasses import dataclass

import numpy as np

K, MICRO, WINDOWS, STEPS = 4, 2, 3, 5
BIG = K * MICRO
RATE, AVERAGE = 0.05, 0.5
INFINITE = K + 1  # the micro-batch with an infinite gradient
EXACT = {"float64": 1e-9, "float32": 1e-6}


@dataclass
class Case:
    """What a training has beside Adam and the mean of a loss."""

    scheduled: bool = False  # the learning rate halves in each update
    clip: float = None  # the gradient's global norm
    decay: float = 0.0  # AdamW's
    average: bool = False  # an exponential moving average of the weights
    normalized: bool = False  # batch normalization
    constrained: bool = False  # max_norm
    tokens: bool = False  # several steps in a sample, of which some are masked
    heads: bool = False  # two outputs, of which each second micro-batch trains only one
    more: int = 0  # micro-batches after the last whole window
    infinite: bool = False  # one of the micro-batches, which should be left out
    stop: int = 0  # micro-batches before the training is saved, to be continued
    replicas: bool = False  # two, each with one sample of every micro-batch
    called: bool = False  # counts calls of callbacks


CASES = {
    "schedule": Case(scheduled=True),
    "clipping": Case(clip=0.1),
    "decay": Case(decay=0.1),
    "tokens": Case(tokens=True),
    "last": Case(more=2),
    "continued": Case(stop=K + 2),
    "average": Case(average=True),
    "missing": Case(heads=True),
    "infinite": Case(more=1, infinite=True),
    "normalization": Case(normalized=True),
    "constraint": Case(constrained=True),
    "replicas": Case(replicas=True),
    "callbacks": Case(called=True),
}


class Data:
    """The samples of a case: inputs, targets, a mask of tokens, and each sample's head."""

    def __init__(self, case, floatx):
        random = np.random.RandomState(1)
        size = (WINDOWS * K + case.more) * MICRO
        shape = (size, STEPS) if case.tokens else (size,)
        x = random.uniform(-1, 1, (*shape, 3))
        y = random.uniform(1, 2, (*shape, 2))
        if case.infinite:
            x[INFINITE * MICRO] = float("inf")
        # The first micro-batch of a window has the fewest tokens.
        lengths = 1 + np.arange(size) % BIG * STEPS // BIG
        mask = np.arange(STEPS) < lengths[:, None] if case.tokens else np.ones(size)
        heads = np.arange(size) // MICRO % 2 if case.heads else np.zeros(size)
        self._arrays = (*(a.astype(floatx) for a in (x, y, mask)), heads.astype("int64"))

    def arrays(self, leave=()):
        """x, y, mask and heads, without the micro-batches `leave`."""
        kept = [i for i in range(len(self._arrays[0])) if i // MICRO not in leave]
        return tuple(array[kept] for array in self._arrays)

    def parts(self, size, leave=()):
        """The arrays in batches of this size."""
        arrays = self.arrays(leave)
        starts = range(0, len(arrays[0]), size)
        return [tuple(array[i : i + size] for array in arrays) for i in starts]


def start(floatx="float64"):
    """The first weights, as {name: array}."""
    random = np.random.RandomState(2)
    shapes = {"hidden": (3, 4), "hidden_bias": (4,), "out": (4, 2), "out_bias": (2,)}
    shapes.update(other=(4, 2), other_bias=(2,))
    return {n: random.uniform(0.2, 0.6, s).astype(floatx) for n, s in shapes.items()}


class Column:
    """One package. `train` and `stock`, at the big batch, return the weights of a case."""

    floatx = "float64"
    says = {}  # cells that aren't measured: {row: text}

    def cells(self):
        """Return {row: cell}."""
        found = {}
        for row, case in CASES.items():
            try:
                found[row] = self.says.get(row) or self.cell(case)
            except Exception as error:  # a package may fail in any way
                found[row] = f"error: {type(error).__name__}"
                print(f"{type(self).__name__}, {row}: {error!r}"[:500], file=sys.stderr)
        return found

    def cell(self, case):
        data = Data(case, self.floatx)
        if case.called:
            return self.calls(case, data)
        distance, without_last = self.distances(case, data)
        if case.more and not case.infinite and without_last < distance:
            return "left over"
        if not np.isfinite(distance):
            return "not finite"
        return "exact" if distance < EXACT[self.floatx] else f"{distance:.0e}"

    def distances(self, case, data):
        """From the big batch, and from that without the micro-batches after the last window."""
        found = self.train(case, data)
        leave = [INFINITE] if case.infinite else []
        last = range(WINDOWS * K, WINDOWS * K + case.more)
        ends = self.stock(case, data, leave), self.stock(case, data, [*leave, *last])
        return [difference(found, end) for end in ends]


def difference(some, others):
    pairs = list(zip(some, others))
    assert pairs and len(some) == len(others)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
