"""How far do uneven micro-batches lead from the big batch? Prints the table of docs/train.md.

Each row trains two epochs with SGD: stock on batches of 30, and ours on batches of 10 in windows of
three, with each reduction. A figure is the largest difference of a weight.
"""

import warnings

import keras
import numpy as np

from keras_accum import SGDAccumulate

SAMPLES, STEPS, CLASSES = 105, 6, 4
random = np.random.default_rng(0)
x = random.normal(size=(SAMPLES, STEPS, 3)).astype("float32")
y = random.integers(0, CLASSES, (SAMPLES, STEPS))
lengths = 1 + np.arange(SAMPLES) % 30 // 5
padded = np.where(np.arange(STEPS)[None, :, None] < lengths[:, None, None], x, 0)
labels = np.where(np.arange(STEPS) < lengths[:, None], y, 0)  # 0 is ignored in some rows
weights = random.uniform(0.2, 3, (SAMPLES, 1)).repeat(STEPS, 1) * lengths[:, None]
WHOLE = SAMPLES // 30 * 30


def crossentropy(**arguments):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)


# What the loss divides by: inputs, targets, sample weights, samples, arguments of the loss.
ROWS = {
    "samples; the last batch is short": (x, y, None, SAMPLES, {}),
    "samples; a batch is left over": (x, y, None, WHOLE + 10, {}),
    "unmasked steps (`mask_zero`, `Masking`)": (padded, y, None, WHOLE, {}),
    "labels that aren't ignored (`ignore_class`)": (x, labels, None, WHOLE, {"ignore_class": 0}),
    'sample weights (`reduction="mean_with_sample_weight"`)': (
        *(x, y, weights, WHOLE),
        {"reduction": "mean_with_sample_weight"},
    ),
    "samples, with sample weights (the default)": (x, y, weights, WHOLE, {}),
    'nothing (`reduction="sum"`)': (x, y, None, WHOLE, {"reduction": "sum"}),
}


def train(optimizer, batch_size, inputs, targets, sample_weight, samples, arguments):
    """Train a new model, and return its weights."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((STEPS, 3))])
    for layer in (
        keras.layers.Masking(),
        keras.layers.Dense(8, "tanh"),
        keras.layers.Dense(CLASSES),
    ):
        model.add(layer)
    model.compile(optimizer, crossentropy(**arguments))
    given = [a if a is None else a[:samples] for a in (inputs, targets, sample_weight)]
    settings = {"batch_size": batch_size, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(given[0], given[1], sample_weight=given[2], **settings)
    return model.get_weights()


def compare(row, reduction):
    """Return the largest difference of a weight from the big batch."""
    ours = train(SGDAccumulate(0.02, accum_iters=3, reduction=reduction), 10, *row)
    stock = train(keras.optimizers.SGD(0.02), 30, *row)
    return f"{max(np.abs(a - b).max() for a, b in zip(ours, stock)):.0e}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("| your loss divides by | `auto` (default) | `mean` | `sum` |")
    print("| --- | ---: | ---: | ---: |")
    for name, row in ROWS.items():
        found = [compare(row, reduction) for reduction in ("auto", "mean", "sum")]
        print(f"| {name} | {' | '.join(found)} |", flush=True)
