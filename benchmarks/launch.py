"""The time that Python takes for a micro-batch on PyTorch: `python benchmarks/launch.py`.

PyTorch runs eagerly, so Python decides how fast a GPU is fed. Tiny variables show its time alone,
also on a CPU. Candidates take turns in one process on one thread, and only ratios of medians are
printed:

* inside a window of 8, 99 variables: a micro-batch over one with Keras's own accumulation;
* its end: the micro-batch that updates, over the least that it can do, the stock optimizer's
  `apply` and two `torch._foreach_add_` of all parameters, after seven of these inside the window;
* `fit` of a network with 50 variables, windows of 8: an epoch over one with Keras's own.

`--rounds` sets how often each candidate runs.
"""

import argparse
import os
from functools import partial
from statistics import median

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from shared.timing import in_turns, seconds

import keras_accum

VARIABLES, WINDOW = 99, 8
OURS = {
    "plain": {},
    "mean": {"reduction": "mean"},
    "weighted": {"reduction": "weighted"},
    "skip_nonfinite": {"skip_nonfinite": True},
    "skip_norm": {"skip_norm": 1e9},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    inside, ends = time_windows(rounds)
    epochs = time_fit(max(rounds // 2, 1))
    print("| | inside a window | its end | `fit` |\n| --- | ---: | ---: | ---: |")
    for name in OURS:
        of_fit = f"{epochs[name] / epochs['own']:.2f}" if name in epochs else ""
        ratios = f"{inside[name] / inside['own']:.2f} | {ends[name] / ends['least']:.2f}"
        print(f"| {name} | {ratios} | {of_fit} |")


def time_windows(rounds):
    """Return medians of seconds, inside windows and at their ends."""
    variables = [keras.Variable(torch.zeros(4)) for _ in range(VARIABLES)]
    gradients = [torch.ones(4) for _ in variables]
    tensors = [torch.zeros(4) for _ in variables]
    made = {name: keras_accum.AdamAccumulate(accum_iters=WINDOW, **o) for name, o in OURS.items()}
    made["own"] = keras.optimizers.Adam(gradient_accumulation_steps=WINDOW)
    made["least"] = keras.optimizers.Adam()
    weight = torch.tensor(4.0)

    def step(name, is_last):
        if name == "weighted":
            made[name].weigh(weight)
        if name != "least" or is_last:
            made[name].apply(gradients, variables)
        if name == "least":
            for _ in range(1 + is_last):
                torch._foreach_add_(tensors, gradients)

    inside, ends = ({name: [] for name in made} for _ in range(2))
    for _ in range(rounds):
        for name in made:
            times = [seconds(step, name, i == WINDOW - 1) for i in range(WINDOW)]
            inside[name].append(median(times[1:-1]))
            ends[name].append(times[-1])
    return [{name: median(row) for name, row in t.items()} for t in (inside, ends)]


def time_fit(rounds):
    """Return medians of seconds of an epoch."""
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(16 * WINDOW * 4, n)).astype("float32") for n in (8, 1))
    ours = ("plain", "mean", "weighted")
    made = {n: keras_accum.AdamAccumulate(accum_iters=WINDOW, **OURS[n]) for n in ours}
    made["own"] = keras.optimizers.Adam(gradient_accumulation_steps=WINDOW)
    models = {}
    for name, optimizer in made.items():
        layers = [keras.layers.Dense(8, activation="tanh") for _ in range(24)]
        models[name] = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
        models[name].compile(optimizer=optimizer, loss="mse")

    def epoch(name):
        models[name].fit(x, y, batch_size=16, epochs=1, verbose=0)

    for name in models:
        epoch(name)  # builds
    times = in_turns({name: partial(epoch, name) for name in models}, rounds)
    return {name: median(row) for name, row in times.items()}


if __name__ == "__main__":
    main()
