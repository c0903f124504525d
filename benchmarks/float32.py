"""How far rounding leads in float32: `python benchmarks/float32.py`, in some twenty minutes.

A small network learns scikit-learn's digits, 15 epochs of Adam from several initial weights.
Prints the largest difference of a weight to `Adam()` with batches of 50, of four trainings:

- accumulated: `AdamAccumulate(accum_iters=5)` with batches of 10;
- nudged: `Adam()` with batches of 50, from initial weights of which half are the next greater
  float32, the smallest difference that there is;
- shuffled inside: `Adam()` with the same batches of 50, the samples of each batch in another order,
  which is the same sum in another order, so that rounding alone makes the difference;
- shuffled afresh: `Adam()` with batches of 50, for which each epoch draws its samples again.

`--policy mixed_float16 --epochs 2` does so in half precision, for 60 updates.
"""

import argparse
import os
import statistics

os.environ["TF_DETERMINISTIC_OPS"] = "1"  # or threads add in any order
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.datasets import load_digits

from keras_accum import AdamAccumulate
from keras_accum.__main__ import difference

BATCH, ACCUM_ITERS = 10, 5
BIG_BATCH = BATCH * ACCUM_ITERS
LEARN = 1500  # of the 1797 digits
STOCK, OURS = "stock", "ours"

ACTIVATIONS = "tanh", "relu"
TRAININGS = "accumulated", "nudged", "shuffled inside", "shuffled afresh"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="how many initial weights")
    parser.add_argument("--policy", default="float32", help="float32, mixed_float16, ...")
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    seeds = options.seeds
    keras.config.set_dtype_policy(options.policy)
    print("| activation | initial weights | " + " | ".join(TRAININGS) + " |")
    print("| --- | --- |" + " ---: |" * len(TRAININGS))
    for activation in ACTIVATIONS:
        trainings, found = Trainings(activation, options.epochs), []
        for seed in range(seeds):
            found.append(trainings.differences(seed))
            print_row(activation, f"seed {seed}", found[-1])
        for what, of in (("median", statistics.median), ("worst", max)):
            print_row(activation, f"{what} of {seeds}", map(of, zip(*found)))


def print_row(activation, start, values):
    cells = " | ".join(f"{value:.1e}" for value in values)
    print(f"| {activation} | {start} | {cells} |", flush=True)


def network(activation, optimizer, seed=0):
    keras.utils.set_random_seed(seed)
    layers, conv = keras.layers, {"kernel_size": 3, "activation": activation}
    hidden = [layers.Conv2D(16, **conv), layers.Conv2D(32, **conv), layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 1)), *hidden, layers.Dense(10)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Trainings:
    """The trainings of one network. Its models are traced once and start anew each time."""

    def __init__(self, activation, epochs):
        images, labels = load_digits(return_X_y=True)
        order = np.random.RandomState(0).permutation(len(labels))[:LEARN]
        images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
        self._digits, self._activation = (images[order], labels[order]), activation
        self._epochs = epochs
        ours = AdamAccumulate(accum_iters=ACCUM_ITERS)
        if keras.config.dtype_policy().name == "mixed_float16":  # as big as the big batch's
            ours = keras.optimizers.LossScaleOptimizer(ours, initial_scale=2**15 / ACCUM_ITERS)
        optimizers = {STOCK: keras.optimizers.Adam(), OURS: ours}
        self._models = {kind: network(activation, made) for kind, made in optimizers.items()}
        self._fresh = {}
        for kind, model in self._models.items():
            model.steps_per_execution = 30  # less time in Python
            model.optimizer.build(model.trainable_variables)
            self._fresh[kind] = [variable.numpy() for variable in model.optimizer.variables]

    def differences(self, seed):
        """Of the weights of each of the trainings to those of the big batch."""
        start = network(self._activation, "adam", seed).get_weights()
        random, in_order = np.random.RandomState(seed), np.arange(LEARN)
        inside = in_order.copy().reshape(-1, BIG_BATCH)
        for batch in inside:
            random.shuffle(batch)
        afresh = [random.permutation(LEARN) for _ in range(self._epochs)]
        nudged = [np.where(random.rand(*w.shape) < 0.5, np.nextafter(w, 2), w) for w in start]
        reference = self._weights(STOCK, start, in_order)
        others = (
            self._weights(OURS, start, in_order),
            self._weights(STOCK, nudged, in_order),
            self._weights(STOCK, start, inside.ravel()),
            self._weights(STOCK, start, *afresh),
        )
        return [difference(other, reference) for other in others]

    def _weights(self, kind, start, *orders):
        """Train in one order of the digits, or in one for each epoch, and return the weights."""
        model = self._models[kind]
        model.set_weights(start)
        for variable, value in zip(model.optimizer.variables, self._fresh[kind]):
            variable.assign(value)
        settings = {"epochs": self._epochs // len(orders), "shuffle": False, "verbose": 0}
        for order in orders:
            images, labels = (array[order] for array in self._digits)
            batch_size = BIG_BATCH if kind == STOCK else BATCH
            model.fit(images, labels, batch_size=batch_size, **settings)
        return model.get_weights()


if __name__ == "__main__":
    main()
