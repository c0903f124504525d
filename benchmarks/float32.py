"""How far rounding leads in float32: `python benchmarks/float32.py`, in some ten minutes.

The network and the data of `python -m keras_accum`, 15 epochs of Adam from several initial weights.
Prints the largest difference of a weight to `Adam()` with batches of 50, of three trainings:

- accumulated: `AdamAccumulate(accum_iters=5)` with batches of 10;
- shuffled: `Adam()` with the same batches of 50, the samples of each batch in another order, which
  is the same sum in another order, so that rounding alone makes the difference;
- micro-batches: `Adam()` with batches of 10.
"""

import argparse
import statistics

import numpy as np

from keras_accum.__main__ import difference, hide_logs, parse
from keras_accum.demo import Demo

ACTIVATIONS = "tanh", "relu"
TRAININGS = "accumulated", "shuffled", "micro-batches"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many initial weights")
    seeds = parser.parse_args().seeds
    hide_logs()

    print("| activation | initial weights | " + " | ".join(TRAININGS) + " |")
    print("| --- |" + " ---: |" * (1 + len(TRAININGS)))
    for activation in ACTIVATIONS:
        found = []
        for seed in range(seeds):
            found.append(differences(activation, seed))
            print_row(activation, f"seed {seed}", found[-1])
        print_row(activation, "median", map(statistics.median, zip(*found)))


def print_row(activation, start, values):
    cells = " | ".join(f"{value:.1e}" for value in values)
    print(f"| {activation} | {start} | {cells} |", flush=True)


def differences(activation, seed):
    """Of the weights of each of the trainings to those of the big batch."""
    options = parse(["--dtype=float32", f"--activation={activation}", f"--seed={seed}"])
    demo = Demo(options)
    digits, micro, big = demo.learn, options.batch, demo.window

    def weights(batch, digits=digits, accumulated=False):
        model = demo.build(accumulated)
        demo.fit(model, digits, batch, options.epochs)
        return model.get_weights()

    order = np.arange(len(digits[0])).reshape(-1, big)
    for batch in order:
        np.random.RandomState(seed).shuffle(batch)
    shuffled = [array[order.ravel()] for array in digits]
    reference = weights(big)
    others = weights(micro, accumulated=True), weights(big, shuffled), weights(micro)
    return [difference(other, reference) for other in others]


if __name__ == "__main__":
    main()
