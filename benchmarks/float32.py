"""How far rounding leads in float32: `python benchmarks/float32.py`, in some twenty minutes.

The network and the data of `python -m keras_accum`, 15 epochs of Adam from several initial weights.
Prints the largest difference of a weight to `Adam()` with batches of 50, of five trainings:

- accumulated: `AdamAccumulate(accum_iters=5)` with batches of 10;
- Keras's update: the same with Keras's own code for the update. For `AdamAccumulate`, TensorFlow's
  fused kernel makes the update (on Keras 3 without XLA), whose rounding differs a little;
- nudged: `Adam()` with batches of 50, from initial weights of which half are the next greater
  float32, the smallest difference that there is;
- shuffled inside: `Adam()` with the same batches of 50, the samples of each batch in another order,
  which is the same sum in another order, so that rounding alone makes the difference;
- shuffled afresh: `Adam()` with batches of 50, for which each epoch draws its samples anew.
"""

import argparse
import statistics

import numpy as np

from keras_accum import accumulating
from keras_accum.__main__ import Demo, difference, hide_logs

STOCK, OURS, OURS_BY_KERAS = "stock", "ours", "ours by Keras's code"

ACTIVATIONS = "tanh", "relu"
TRAININGS = "accumulated", "Keras's update", "nudged", "shuffled inside", "shuffled afresh"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="how many initial weights")
    seeds = parser.parse_args().seeds
    hide_logs()

    print("| activation | initial weights | " + " | ".join(TRAININGS) + " |")
    print("| --- |" + " ---: |" * (1 + len(TRAININGS)))
    for activation in ACTIVATIONS:
        trainings, found = Trainings(activation), []
        for seed in range(seeds):
            found.append(trainings.differences(seed))
            print_row(activation, f"seed {seed}", found[-1])
        for what, of in (("median", statistics.median), ("worst", max)):
            print_row(activation, f"{what} of {seeds}", map(of, zip(*found)))


def print_row(activation, start, values):
    cells = " | ".join(f"{value:.1e}" for value in values)
    print(f"| {activation} | {start} | {cells} |", flush=True)


class Trainings:
    """The trainings of one network. Its models are traced once and start anew each time."""

    def __init__(self, activation):
        self._demo = Demo(dtype="float32", activation=activation)
        self._models = {STOCK: self._demo.build(False), OURS: self._demo.build(True)}
        self._models[OURS_BY_KERAS] = model = self._demo.build(False)
        model.compile(without_kernel(type(model.optimizer))(accum_iters=5), model.loss)
        self._fresh = {}
        for kind, model in self._models.items():
            model.steps_per_execution = 30  # less time in Python
            model.optimizer.build(model.trainable_variables)
            self._fresh[kind] = [variable.numpy() for variable in model.optimizer.variables]

    def differences(self, seed):
        """Of the weights of each of the trainings to those of the big batch."""
        start = self._demo.build(False, seed).get_weights()
        random, count = np.random.RandomState(seed), len(self._demo.learn[0])
        in_order, big = np.arange(count), self._demo.big_batch
        inside = in_order.copy().reshape(-1, big)
        for batch in inside:
            random.shuffle(batch)
        afresh = [random.permutation(count) for _ in range(self._demo.epochs)]
        nudged = [np.where(random.rand(*w.shape) < 0.5, np.nextafter(w, 2), w) for w in start]
        reference = self._weights(STOCK, start, in_order)
        others = (
            self._weights(OURS, start, in_order),
            self._weights(OURS_BY_KERAS, start, in_order),
            self._weights(STOCK, nudged, in_order),
            self._weights(STOCK, start, inside.ravel()),
            self._weights(STOCK, start, *afresh),
        )
        return [difference(other, reference) for other in others]

    def _weights(self, kind, start, *orders):
        """Train in one order of the digits, or in one for each epoch, and return the weights."""
        model, demo = self._models[kind], self._demo
        model.set_weights(start)
        for variable, value in zip(model.optimizer.variables, self._fresh[kind]):
            variable.assign(value)
        for order in orders:
            digits = [array[order] for array in demo.learn]
            batch = demo.big_batch if kind == STOCK else demo.batch
            demo.fit(model, digits, batch, demo.epochs // len(orders))
        return model.get_weights()


def without_kernel(stock):
    """Return our class of an optimizer that isn't Keras's own, which no kernel updates."""
    return accumulating(type(f"Plain{stock.__name__}", (stock,), {}))


if __name__ == "__main__":
    main()
