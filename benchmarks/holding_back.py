"""What each way to hold back a write costs inside a window: `python benchmarks/holding_back.py`.

Applies Adam with gate="select" to 4 M parameters in windows of 8 micro-batches, once with each way
that could hold back the writes of an update. Prints the time of a micro-batch divided by the floor:
seven bare additions and one stock update. `--host tf_keras` measures tf_keras, and `--xla` compiles
the step on TensorFlow. The ways take turns in one process; the smallest times count.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from shared import alone, contenders
from shared.timing import smallest

SHAPES = [(1000, 1000)] * 4 + [(1000,)] * 4
WINDOW = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way")
    parser.add_argument("--host", choices=("keras3", "tf_keras"), default="keras3")
    parser.add_argument("--xla", action="store_true", help="compile on TensorFlow")
    options = parser.parse_args()
    keras, accum, stock = contenders.load(options.host)
    made = {"stock": stock.Adam()}
    made["floor"] = contenders.bare_accumulation(options.host, keras, stock)()
    ways = of_keras3(keras) if options.host == "keras3" else of_tf_keras()
    for name, change in ways.items():
        made[name] = accum.AdamAccumulate(accum_iters=WINDOW, gate="select")
        change(made[name])
    runs = {
        name: alone.windows(options.host, keras, optimizer, WINDOW, SHAPES, options.xla)
        for name, optimizer in made.items()
    }
    for run in runs.values():
        run()
    found = smallest(runs, options.rounds)
    floor = ((WINDOW - 1) * found["floor"] + found["stock"]) / WINDOW
    print("| way | of the floor |\n| --- | ---: |")
    for name in ways:
        print(f"| {name} | {found[name] / floor:.2f} |")


def leave(optimizer):
    """Change nothing: as the package does it."""


def of_keras3(keras):
    from keras_accum.keras3.update import SelectAfter

    def restore_old_values(optimizer):
        update = optimizer._accumulation.update
        update.make_filter = lambda switch, switch_of: SelectAfter(update, switch, switch_of)

    def write_whole_values(optimizer):
        assign = optimizer.assign
        optimizer.assign_add = lambda variable, value: assign(variable, variable + value)
        optimizer.assign_sub = lambda variable, value: assign(variable, variable - value)

    ways = {"select writes": leave, "select after": restore_old_values}
    if keras.backend.backend() == "tensorflow":
        ways["select writes, changes as whole values"] = write_whole_values
    return ways


def of_tf_keras():
    def restore_old_values(optimizer):
        update = optimizer._accumulation.update
        update.__class__ = type("WithoutRules", (type(update),), {"rule": None})

    return {"scalars of a rule": leave, "select after": restore_old_values}


if __name__ == "__main__":
    main()
