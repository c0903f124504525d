"""A gradient is left out of its window if its variable has none in the window's last micro-batch.

Two losses in turns, for example of a generator and a discriminator, give each variable a gradient
in every second micro-batch. Keras 3.15 updates the variables that have a gradient in the last
micro-batch alone. On JAX the other accumulators go into the next window; on other backends they
are set to zero, and their gradients are lost.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


def train(optimizer, steps):
    """Each step is a list with the gradient of each variable, or None."""
    weights = [keras.Variable([10.0], name="first"), keras.Variable([10.0], name="second")]
    optimizer.build(weights)
    for gradients in steps:
        pairs = [(g, w) for g, w in zip(gradients, weights) if g is not None]
        optimizer.apply_gradients(pairs)
    return np.ravel([keras.ops.convert_to_numpy(weight) for weight in weights])


one, half = keras.ops.ones(1), keras.ops.full((1,), 0.5)
big_batch = train(keras.optimizers.SGD(1.0), [[half, half]])
in_turns = [[one, None], [None, one]]
accumulated = train(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2), in_turns)
print("the big batch:", big_batch, "accumulated:", accumulated)
assert np.allclose(accumulated, big_batch, rtol=1e-5), "a gradient isn't in its window's update"
