"""What an update by the stock optimizer's code costs, for several optimizers of Keras 3.

`python benchmarks/optimizers.py`, with KERAS_BACKEND, applies each optimizer alone to 4 M
parameters with given gradients, in windows of 8 micro-batches. It prints the time of a micro-batch
with each gate, divided by that of the stock optimizer, which updates on every micro-batch, and by
the floor: seven bare additions and one stock update. `--xla` compiles the step on TensorFlow. The
contenders take turns in one process, and only ratios of the smallest times are printed.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from shared import alone, contenders
from shared.timing import smallest

NAMES = "SGD", "Adam", "AdamW", "RMSprop", "Lion", "Adafactor"
SHAPES = [(1000, 1000)] * 4 + [(1000,)] * 4
WINDOW = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender")
    parser.add_argument("--xla", action="store_true", help="compile on TensorFlow")
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    keras, accum, stock = contenders.load("keras3")
    ratios = "select / stock", "conditional / stock", "select / floor", "conditional / floor"
    print(f"| optimizer | {' | '.join(ratios)} |")
    print(f"| --- |{' ---: |' * len(ratios)}")
    for name in options.names:
        ours = getattr(accum, f"{name}Accumulate")
        made = {
            "stock": getattr(stock, name)(),
            "floor": contenders.bare_accumulation("keras3", keras, stock)(),
            "select": ours(accum_iters=WINDOW, gate="select"),
            "conditional": ours(accum_iters=WINDOW, gate="conditional"),
        }
        runs = {who: windows(keras, optimizer, options.xla) for who, optimizer in made.items()}
        for run in runs.values():
            run()
        found = smallest(runs, options.rounds)
        floor = ((WINDOW - 1) * found["floor"] + found["stock"]) / WINDOW
        ratios = [found[who] / to for to in (found["stock"], floor) for who in list(made)[2:]]
        print(f"| {name} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |", flush=True)


def windows(keras, optimizer, xla):
    step = alone.make("keras3", keras, optimizer, SHAPES, xla=xla).step

    def run():
        for _ in range(WINDOW - 1):
            step()
        alone.wait(step())

    return run


if __name__ == "__main__":
    main()
