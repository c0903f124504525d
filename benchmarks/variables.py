"""What many small variables or a large one cost: `python benchmarks/variables.py <host>`.

Applies an optimizer alone to given gradients and prints three ratios over stock Adam: the size of
the traced graph (or of JAX's program), the time of the first micro-batch, which traces and
compiles, and the time of a later micro-batch. Times are the smallest of rounds in which all
contenders take turns.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from shared import alone, contenders
from shared.contenders import CONDITIONAL, OWN, SELECT, STOCK
from shared.timing import smallest

WINDOW = 8
SHAPES = {f"{n} of 100": [(100,)] * n for n in (2, 200, 2000)}
SHAPES["300 of 64"] = [(64,)] * 300
SHAPES["1 of 50 M"] = [(50_000_000,)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("host", choices=("keras3", "tf_keras"))
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    options = parser.parse_args()
    keras = contenders.load(options.host)[0]
    found = contenders.find(options.host)
    print("| variables | contender | size | first micro-batch | later micro-batch |")
    print("| --- | --- | ---: | ---: | ---: |")
    for what in options.shapes:
        measure(options, keras, found, what, SHAPES[what])


def measure(options, keras, found, what, shapes):
    names = [name for name in (STOCK, SELECT, CONDITIONAL, OWN) if name in found]
    first = {name: [] for name in names}
    for _ in range(options.rounds):
        made = {}
        for name in names:
            optimizer = found[name].optimizer(WINDOW)
            made[name] = alone.make(options.host, keras, optimizer, shapes)
            start = time.perf_counter()
            alone.wait(made[name].step())
            first[name].append(time.perf_counter() - start)
    first = {name: min(times) for name, times in first.items()}

    def window(step):
        for _ in range(WINDOW):
            alone.wait(step())

    steps = {name: lambda step=m.step: window(step) for name, m in made.items()}
    later = smallest(steps, options.rounds)
    sizes = {name: m.size() for name, m in made.items()}
    for name in names[1:]:
        size = f"{sizes[name] / sizes[STOCK]:.2f}" if sizes[name] else ""
        cells = f"{first[name] / first[STOCK]:.2f} | {later[name] / later[STOCK]:.2f}"
        print(f"| {what} | {name} | {size} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
