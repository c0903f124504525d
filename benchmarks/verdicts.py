"""How often is the verdict of a comparison right? `python benchmarks/verdicts.py 30`.

Compares models that are equal to the big batch or differ from it by construction, each with the
seeds 0 to n - 1 for its samples and weights, and prints how often each verdict was given.
`--rows mask` keeps the rows with this text in their names. KERAS_BACKEND chooses the backend, by
default PyTorch, and PYTHONPATH the release.
"""

import argparse
import contextlib
import io
import os
import sys
import warnings
from collections import Counter
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import compared
import keras
import numpy as np
from compared import (
    DIFFERS,
    EQUAL,
    LENGTH,
    MEAN,
    SAMPLES,
    SIZE,
    VERDICTS,
    clip,
    deep,
    dense,
    embedding,
    large_first,
    near_optimum,
    network,
    norm,
    recurrent,
    row,
    samples,
    with_root,
)
from keras import layers, ops

import keras_accum as accum

BACKEND = keras.backend.backend()

# -- samples ---------------------------------------------------------------------------------------


def rare(draw):
    """Most ids are small, and most rows of the embedding don't occur."""
    ids = np.minimum(np.exp(np.abs(draw(SAMPLES, 8)) * 1.5), 99).astype(int)
    ids[:, 0] = 1
    ids[SIZE:, 5:] = 0
    return ids, draw(SAMPLES, 8, 1)


def centered(draw):
    """Targets with a mean of 0: the bias has a gradient of 0 if other weights are 0."""
    x, y = draw(SAMPLES, 3), draw(SAMPLES, 2) * 1e4
    return x, y - y.mean(0)


def alike(by):
    """Micro-batches with the same samples, but for this part of them."""

    def data(draw):
        x, y = (np.concatenate([draw(SIZE, width)] * LENGTH) for width in (3, 2))
        return x + draw(SAMPLES, 3) * np.float32(by), y

    return data


# -- models and losses -----------------------------------------------------------------------------


def bias_before_normalization():
    """Each channel is normalized over its steps, so the bias before has no effect."""
    found = layers.Dense(4), layers.GroupNormalization(-1), layers.ReLU()
    last = layers.GlobalAveragePooling1D(), layers.Dense(2)
    return keras.Sequential([keras.Input((6, 3)), *found, *last])


def train(model, x, y):
    model.compile(keras.optimizers.Adam(0.02), "mse", jit_compile=False)
    model.fit(x, y, batch_size=SAMPLES, epochs=100, verbose=0)


def clip_softly(by):
    """Each gradient becomes smaller by up to this part, the more the larger it is."""

    def change(gradients):
        scale = 1 - by * norm(gradients) / (1 + norm(gradients))
        return [gradient * scale for gradient in gradients]

    return lambda: compared.ChangesGradients(change)


def times(factor):
    return lambda y_true, y_pred: factor * (y_true - y_pred) ** 2


def beside_large(y_true, y_pred):
    """The second output's loss compares samples; the first's gradients are 1e11 times as large."""
    squares = (y_true - y_pred) ** 2
    return 1e11 * ops.mean(squares[:, 0]) + ops.mean(squares[:, 1]) ** 0.5


# -- rows ------------------------------------------------------------------------------------------

ROWS = {
    **compared.ROWS,
    # Rounding is larger than elsewhere, and the gradient larger still.
    "a GRU": row(EQUAL, lambda: recurrent("GRU"), samples(40, 3)),
    "ten relu layers": row(EQUAL, lambda: deep("relu", 10, 32)),
    "a trained network": row(EQUAL, prepare=train),
    "close to its optimum, 1e-2": row(EQUAL, dense, prepare=near_optimum(1e-2)),
    "a loss times 1e-4": row(EQUAL, loss=lambda: times(1e-4)),
    "a loss times 1e-12": row(EQUAL, loss=lambda: times(1e-12)),
    "a bias before a normalization": row(EQUAL, bias_before_normalization, samples(6, 3)),
    "a bias whose gradients cancel": row(
        *(EQUAL, lambda: dense(kernel_initializer="zeros"), centered)
    ),
    "rare rows": row(EQUAL, lambda: embedding(100, 8), rare),
    "rare rows, a mask": row(EQUAL, lambda: embedding(100, 8, mask_zero=True), rare),
    "targets 1e4 times as large in one micro-batch": row(EQUAL, data=large_first(1e4)),
    # The window differs by little.
    "rare rows, a mask, the mean": row(
        *(DIFFERS, lambda: embedding(100, 8, mask_zero=True), rare), options=MEAN
    ),
    "batch normalization, batches that differ by 1e-2": row(
        DIFFERS, lambda: network(layers.BatchNormalization()), alike(1e-2)
    ),
    "batch normalization, batches that differ by 1e-3": row(
        DIFFERS, lambda: network(layers.BatchNormalization()), alike(1e-3)
    ),
    "a part of 1e-2 compares samples": row(DIFFERS, loss=lambda: with_root(1e-2)),
    "a part of 1e-3 compares samples": row(DIFFERS, loss=lambda: with_root(1e-3)),
    "a part of 1e-4 compares samples": row(DIFFERS, loss=lambda: with_root(1e-4)),
    "clipped in one micro-batch": row(DIFFERS, clip(100.0), large_first(1e4), on_jax=False),
    "clipped softly, by 1e-2": row(DIFFERS, clip_softly(1e-2), on_jax=False),
    "clipped softly, by 1e-3": row(DIFFERS, clip_softly(1e-3), on_jax=False),
    # Not counted: the comparison judges a variable as a whole.
    "elements 1e11 times smaller compare samples": row(VERDICTS, dense, loss=lambda: beside_large),
}


def compare(name, seed):
    """Return the Comparison of a row."""
    keras.utils.set_random_seed(seed)
    model, data, arguments = compared.make(ROWS[name], seed, jit_compile=BACKEND == "jax")
    with contextlib.redirect_stdout(io.StringIO()):  # MicroBatches says how it computes the loss
        return accum.compare_with_big_batch(model, *data, **arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", type=int, help="how many, from 0 on")
    parser.add_argument("--rows", default="", help="a text in the names of rows")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"keras_accum {accum.__version__}, keras {keras.__version__}, {BACKEND}\n")
    print("| model | right | equal | differs | undecided | distance |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    false, due = Counter(), 0
    for name, each in ROWS.items():
        if given.rows not in name or (BACKEND == "jax" and not each.on_jax):
            continue
        keras.backend.clear_session()
        found = [compare(name, seed) for seed in range(given.seeds)]
        verdicts = Counter(one.verdict for one in found)
        false.update({v: count for v, count in verdicts.items() if v not in each.right})
        due += len(found)
        distances = [one.window for one in found]
        cells = " or ".join(each.right), *(verdicts[v] for v in VERDICTS)
        ends = f"{min(distances):.0e} to {max(distances):.0e}"
        print(f"| {name} | {' | '.join(map(str, cells))} | {ends} |", flush=True)
    counts = ", ".join(f'"{verdict}" {false[verdict]}' for verdict in VERDICTS)
    print(f"\nFalse, of {due}: {counts}.")


if __name__ == "__main__":
    main()
