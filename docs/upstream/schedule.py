"""A learning rate schedule runs through its steps once per micro-batch, not once per update.

Keras 3.15: `_get_current_learning_rate` calls the schedule with `_iterations`, which counts
micro-batches. The property `iterations`, which counts updates, is used everywhere else.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

schedule = keras.optimizers.schedules.ExponentialDecay(1.0, decay_steps=1, decay_rate=0.5)


def train(optimizer, steps):
    weight = keras.Variable([10.0])
    optimizer.build([weight])
    for _ in range(steps):
        optimizer.apply([keras.ops.ones(1)])
    return keras.ops.convert_to_numpy(weight)


big_batch = train(keras.optimizers.SGD(schedule), steps=2)
accumulated = train(keras.optimizers.SGD(schedule, gradient_accumulation_steps=4), steps=8)
print("the big batch:", big_batch, "accumulated:", accumulated)
assert np.allclose(accumulated, big_batch, rtol=1e-5), "the schedule doesn't count updates"
