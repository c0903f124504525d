"""The ten lines of docs/mathematics.md, and an update to give them. No framework is needed."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mathematics.md").read_text("utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)

found = {}
exec(CODE, found)
micro_batch = found["micro_batch"]

# What `stock` computes, as arguments of Keras's AdamW. The rate of update t is 0.3 / (1 + t).
CLIP, LEAST = 0.5, 0.3
ADAMW = {
    **{"beta_1": 0.6, "beta_2": 0.8, "epsilon": 0.1, "clipnorm": CLIP, "weight_decay": 0.1},
    **{"use_ema": True, "ema_momentum": 0.9},
}


def stock(gradient, weights, slots, updates):
    """AdamW with every line of the page's table, in the page's order."""
    m, v, average = slots
    rate = 0.3 / (1 + updates)
    gradient = gradient * min(1, CLIP / np.linalg.norm(gradient))
    weights = weights - rate * 0.1 * weights
    m, v = 0.6 * m + 0.4 * gradient, 0.8 * v + 0.2 * gradient**2
    correction = np.sqrt(1 - 0.8 ** (updates + 1)) / (1 - 0.6 ** (updates + 1))
    weights = weights - rate * correction * m / (np.sqrt(v) + 0.1)
    average = weights if updates == 0 else 0.9 * average + 0.1 * weights
    return np.maximum(weights, LEAST), (m, v, average)


def start():
    return np.full(3, 0.5), tuple(np.zeros((3, 3)))


def optimizer(accum_iters, reduction="mean"):
    weights, slots = start()
    numbers = {"updates": 0, "position": 0, "length": 0, "divisor": 0, "sum": 0}
    options = {"accum_iters": accum_iters, "reduction": reduction, "stock": stock}
    return SimpleNamespace(weights=weights, slots=slots, **numbers, **options)
