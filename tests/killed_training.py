"""A training that continues from the newest checkpoint, see test_killed.py."""

import os
import sys
from pathlib import Path

import hosts
import numpy as np
import training
from hosts import keras
from training import LENGTH

KILLS = 4
STEPS = 20 * KILLS
FILE = "newest.keras" if hosts.IS_KERAS3 else "newest.h5"
ADAM = {"learning_rate": 2**-6, "accum_iters": LENGTH}


def fresh():
    optimizer = hosts.ours("Adam", **ADAM)
    return training.compiled(training.dense_model(), optimizer, hosts.mean_squared_error())


def steps_made(optimizer):
    return optimizer.completed_updates * LENGTH + optimizer.window_position


def step(model):
    """Train on the next micro-batch, as counted by the optimizer's state."""
    batches = training.batches(training.MICRO)
    model.train_on_batch(*batches[steps_made(model.optimizer) % len(batches)])


def everything(model):
    return [*training.weights(model).values(), *model.optimizer.get_state().values()]


def train(folder):
    """Train in the process that gets killed: `python killed_training.py FOLDER`.

    A file is written under another name and then renamed, which can't happen in part.
    """
    sys.stdin.readline()
    hosts.set_floatx(hosts.FLOATX)
    model = fresh()
    if (folder / FILE).exists():
        model = keras.models.load_model(
            str(folder / FILE), custom_objects={"AdamAccumulate": hosts.accum.AdamAccumulate}
        )
    print("step", steps_made(model.optimizer), flush=True)
    while steps_made(model.optimizer) < STEPS:
        step(model)
        model.save(str(folder / f"next-{FILE}"))
        os.replace(folder / f"next-{FILE}", folder / FILE)
        print("step", steps_made(model.optimizer), flush=True)
    np.savez(folder / "end.npz", *everything(model))


if __name__ == "__main__":
    train(Path(sys.argv[1]))
