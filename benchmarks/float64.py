"""How far is float64 in Keras from NumPy? A row of docs/exactness.md for the backend in use.

KERAS_BACKEND=jax python benchmarks/float64.py
"""

import keras
import numpy as np
from keras import ops

from keras_accum.keras3 import SGDAccumulate

RATE, BIG, WINDOW = 0.1, 20, 4


def distance(values, expected):
    return max(abs(np.asarray(a, "float64") - b).max() for a, b in zip(values, expected))


def train(optimizer, x, y, batch_size):
    """Return the weights of a small network before and after an epoch."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse")
    before = model.get_weights()
    model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0)
    return before, model.get_weights()


def train_in_numpy(weights, x, y):
    """Return what SGD makes of the weights, in NumPy."""
    for start in range(0, len(x), BIG):
        inputs, targets = x[start : start + BIG], y[start : start + BIG]
        first, bias, last, other_bias = weights
        hidden = np.tanh(inputs @ first + bias)
        slope = 2 * (hidden @ last + other_bias - targets) / targets.size
        inside = slope @ last.T * (1 - hidden**2)
        gradients = inputs.T @ inside, inside.sum(0), hidden.T @ slope, slope.sum(0)
        weights = [w - RATE * g for w, g in zip(weights, gradients)]
    return weights


def main():
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    keras.backend.set_floatx("float64")
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 64, 64))
    x, y = random.normal(size=(60, 3)), random.normal(size=(60, 2))
    both = ops.convert_to_tensor(a), ops.convert_to_tensor(b)
    values = ops.matmul(*both), ops.tanh(both[0]), ops.mean(both[0])
    expected = a @ b, np.tanh(a), a.mean()
    row = [distance([ops.convert_to_numpy(v)], [e]) for v, e in zip(values, expected)]
    before, of_stock = train(keras.optimizers.SGD(RATE), x, y, BIG)
    _, of_ours = train(SGDAccumulate(RATE, accum_iters=WINDOW), x, y, BIG // WINDOW)
    row += [distance(of_stock, train_in_numpy(before, x, y)), distance(of_ours, of_stock)]
    print(f"| {keras.backend.backend()} |", *(f"{each:.0e} |" for each in row))


if __name__ == "__main__":
    main()
