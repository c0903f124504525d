"""How long the first `fit` takes: `KERAS_BACKEND=jax python benchmarks/first_update.py`.

Trains 24 residual blocks, 148 variables, in batches of 10, each way in a process of its own, by
turns. Prints, over the stock optimizer, the median of the processor time of the first `fit`, most
of it for tracing and compiling, and of an epoch of a later one; on JAX, also the time for tracing
and the number of compiled programs. With `--jit`, the step is compiled on TensorFlow, and on
PyTorch, where 148 variables take minutes: add `--blocks 1`. `--micro 50` has larger micro-batches.
With `--build`, the optimizer is built before, so that TensorFlow traces the step once.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

LENGTH = 5
STOCK, WHOLE, LEFT, SLICES = "stock", "ours, 2 windows", "ours, 7 micro-batches", "MicroBatches"
BIG, OWN = "stock, the big batch", "Keras's own, k = 5"
# Each way's micro-batches in an epoch.
WAYS = {STOCK: 10, OWN: 10, WHOLE: 10, LEFT: 7, BIG: 10, SLICES: 10}
OVER = {SLICES: BIG}  # what a way is compared with, in place of STOCK


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("way", nargs="?", choices=WAYS)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--micro", type=int, default=10, help="samples in a micro-batch")
    parser.add_argument("--build", action="store_true")
    given = parser.parse_args()
    if given.way:
        print(*measure(given.way, given.jit or "auto", given.blocks, given.micro, given.build))
        return
    found = {way: [] for way in WAYS}
    for _ in range(given.turns):
        for way in WAYS:
            command = [sys.executable, __file__, way, *sys.argv[1:]]
            text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            found[way].append(list(map(float, text.splitlines()[-1].split())))
    figures = {way: list(map(statistics.median, zip(*rows))) for way, rows in found.items()}
    print("| | first `fit` | a later epoch | tracing | programs |")
    print("| --- | --- | --- | --- | --- |")
    for way, row in figures.items():
        base = figures[OVER.get(way, STOCK)]
        ratios = [f"{a / b:.2f}" if b else "" for a, b in zip(row[:3], base)]
        seconds = f"1 ({row[0]:.1f} s)" if row is base else ratios[0]
        print(f"| {way} | {seconds} | {' | '.join(ratios[1:])} | {row[3]:.0f} |")


def measure(way, jit, blocks, micro, builds):
    """Return the seconds of a first `fit`, a later epoch and tracing, and the programs."""
    import keras
    import numpy as np

    from keras_accum import AdamAccumulate, MicroBatches

    traced = listen() if keras.backend.backend() == "jax" else []
    x = y = keras.Input((128,))
    for _ in range(blocks):
        hidden = keras.layers.Dense(256, "gelu")(keras.layers.LayerNormalization()(y))
        y = keras.layers.Add()([y, keras.layers.Dense(128)(hidden)])
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.LayerNormalization()(y)))
    optimizer = keras.optimizers.Adam()
    if way == OWN:
        optimizer = keras.optimizers.Adam(gradient_accumulation_steps=LENGTH)
    elif way in (WHOLE, LEFT):
        optimizer = AdamAccumulate(accum_iters=LENGTH)
    model.compile(optimizer, "mse", jit_compile=jit)
    size = micro * (LENGTH if way in (BIG, SLICES) else 1)
    draw = np.random.default_rng(0).normal
    arrays = [draw(size=(WAYS[way] * micro, width)).astype("float32") for width in (128, 1)]
    callbacks = [MicroBatches(micro)] if way == SLICES else []
    seconds = []
    for epochs in 1, 5:
        start = time.process_time()
        if builds and epochs == 1:
            optimizer.build(model.trainable_variables)
        model.fit(*arrays, batch_size=size, epochs=epochs, verbose=0, callbacks=callbacks)
        seconds.append((time.process_time() - start) / epochs)
        if epochs == 1:
            first = list(traced)
    programs = sum("backend_compile" in event for event, _ in first)
    tracing = sum(seconds for event, seconds in first if "jaxpr_trace" in event)
    return [*seconds, tracing, programs]


def listen():
    """Return a list that gets JAX's events, with their seconds."""
    import jax

    events = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: events.append((event, seconds))
    )
    return events


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    main()
