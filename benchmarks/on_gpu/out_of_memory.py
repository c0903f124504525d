"""What 3% of a GPU's memory leads to. `gpu.py` gives JAX no more, and PyTorch gets it here."""

import functools

import keras
import numpy as np

from keras_accum import MicroBatches, SGDAccumulate

FRACTION = 0.03
SLICE = 16


def measure(options, what):
    """Return {training: how it ended}, in order.

    That is the largest difference of a weight to slices of 16, over the largest weight, or the
    error. The first one should run out of memory.
    """
    if keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(FRACTION)
    big, size = (32, 8) if options.small else (2048, 128)
    train = functools.partial(fit, size)
    stock, ours = keras.optimizers.SGD, SGDAccumulate
    trainings = {
        "stock, big batch": lambda: train(stock(0.1), big, big),
        f"MicroBatches({SLICE})": lambda: train(stock(0.1), big, big, [MicroBatches(SLICE)]),
        'MicroBatches("auto")': lambda: train(stock(0.1), big, big, [MicroBatches("auto")]),
        "accumulating optimizer": lambda: train(ours(0.1, accum_iters=big // SLICE), big, SLICE),
    }
    ends = {name: attempt(training) for name, training in trainings.items()}
    expected = ends[f"MicroBatches({SLICE})"]

    def describe(end):
        if isinstance(end, str) or isinstance(expected, str):
            return end if isinstance(end, str) else "trained"
        return float(f"{abs(end - expected).max() / abs(expected).max():.1e}")

    return {name: describe(end) for name, end in ends.items()}


def attempt(training):
    """Return the weights, or the error."""
    try:
        return training()
    except Exception as error:  # each backend has its own
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def fit(size, optimizer, samples, batch, callbacks=()):
    """Return the weights after two epochs, on pictures of this size."""
    keras.utils.set_random_seed(0)
    layers, conv = keras.layers, {"kernel_size": 3, "padding": "same", "activation": "tanh"}
    hidden = layers.Conv2D(32, **conv), layers.Conv2D(32, **conv), layers.GlobalAveragePooling2D()
    model = keras.Sequential([keras.Input((size, size, 3)), *hidden, layers.Dense(1)])
    model.compile(optimizer, "mse")
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, size, size, 3)).astype("float32")
    y = random.normal(size=(samples, 1)).astype("float32")
    settings = {"shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    model.fit(x, y, batch_size=batch, epochs=2, **settings)
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])
