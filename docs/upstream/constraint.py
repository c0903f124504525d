"""A constraint changes the weights once per micro-batch, also inside a window.

Keras 3.15: `apply` calls the constraints after every micro-batch. A constraint that changes a
weight twice if it is called twice gives other weights than the big batch. Any constraint moves
weights that don't meet it yet, so the micro-batches of a window are at different weights.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


class Shrink(keras.constraints.Constraint):
    def __call__(self, weight):
        return 0.5 * weight


def train(optimizer, steps):
    weight = keras.Variable([16.0])
    weight.constraint = Shrink()
    optimizer.build([weight])
    for _ in range(steps):
        optimizer.apply([keras.ops.ones(1)])
    return keras.ops.convert_to_numpy(weight)


big_batch = train(keras.optimizers.SGD(1.0), steps=1)
accumulated = train(keras.optimizers.SGD(1.0, gradient_accumulation_steps=4), steps=4)
print("the big batch:", big_batch, "accumulated:", accumulated)
assert np.allclose(accumulated, big_batch, rtol=1e-5), "the constraint doesn't count updates"
