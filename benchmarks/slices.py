"""What slices cost on a CPU: `KERAS_BACKEND=jax python benchmarks/slices.py`, or another backend.

Trains two networks at batch 512 with the stock optimizer, and in slices of 64 with `MicroBatches`:
with a loss of Keras, which takes one pass, and with a loss of your own, which takes two. On JAX,
one pass has a program for each slice where JAX has only CPUs; the script also runs a loop in one
program, as elsewhere. Each way has a process of its own. Prints, over the stock optimizer at batch
64, the processor time of the first `fit`, most of it for compiling, and of a later one; and by how
many MB the process has grown at most.
"""

import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

BATCH, SLICE, BATCHES = 512, 64, 3
ON_JAX = os.environ["KERAS_BACKEND"] == "jax"
STOCK, BIG, LOOP = "stock, small batch", "stock, big batch", "a loop in one program"
ONE, TWO = "slices, one pass", "slices, two passes"


def main():
    if len(sys.argv) > 1:
        measure(*sys.argv[1:])
        return
    for network in "MLP", "convolutions":
        found = {}
        for way in (STOCK, BIG, ONE, TWO, *[LOOP] * ON_JAX):
            command = [sys.executable, __file__, network, way]
            text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            found[way] = list(map(float, text.splitlines()[-1].split()))
            ratios = [a / b for a, b in zip(found[way][:2], found[STOCK])]
            print(f"{network}, {way}: first fit {ratios[0]:.2f}, later {ratios[1]:.2f}, ", end="")
            print(f"{found[way][2]:.0f} MB", flush=True)


def measure(network, way):
    import keras
    import numpy as np

    from keras_accum import MicroBatches

    def of_user(y_true, y_pred):
        return keras.losses.mean_squared_error(y_true, y_pred)

    class Loop(MicroBatches):
        def on_train_begin(self, logs=None):
            super().on_train_begin(logs)
            self._step.compiles_itself = False

    layers = keras.layers
    if network == "MLP":
        shape, hidden = (512,), [layers.Dense(512, "tanh") for _ in range(6)]
    else:
        shape = (24, 24, 3)
        hidden = [layers.Conv2D(32, 3, activation="tanh") for _ in range(4)]
        hidden.append(layers.Flatten())
    model = keras.Sequential([layers.Input(shape), *hidden, layers.Dense(1)])
    loss = of_user if way == TWO else "mse"
    # TensorFlow's slices aren't for XLA on a CPU.
    model.compile(keras.optimizers.Adam(), loss, jit_compile=ON_JAX)
    draw = np.random.default_rng(0).normal
    x, y = (draw(size=(BATCHES * BATCH, *s)).astype("float32") for s in (shape, (1,)))
    kinds = {ONE: MicroBatches, TWO: MicroBatches, LOOP: Loop}
    callbacks = [kinds[way](SLICE)] if way in kinds else []
    batch_size = SLICE if way == STOCK else BATCH
    before, times = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(2 if (network, way) == ("convolutions", LOOP) else 4):
        start = time.process_time()
        model.fit(x, y, batch_size, shuffle=False, verbose=0, callbacks=callbacks)
        times.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(times[0], min(times[1:]), (peak - before) / 1024)


if __name__ == "__main__":
    main()
