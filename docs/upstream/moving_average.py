"""The moving average of the weights moves once per micro-batch, not once per update.

Keras 3.15: `_backend_apply_gradients` moves the average after every micro-batch, outside the
condition. With `ema_momentum=m`, the average of a window of k micro-batches forgets like m ** k.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


def train(optimizer, steps):
    weight = keras.Variable([10.0])
    optimizer.build([weight])
    for _ in range(steps):
        optimizer.apply([keras.ops.ones(1)])
    optimizer.finalize_variable_values([weight])  # the average takes the place of the weight
    return keras.ops.convert_to_numpy(weight)


average = {"use_ema": True, "ema_momentum": 0.5}
big_batch = train(keras.optimizers.SGD(1.0, **average), steps=3)
accumulated = train(keras.optimizers.SGD(1.0, **average, gradient_accumulation_steps=4), steps=12)
print("the big batch:", big_batch, "accumulated:", accumulated)
assert np.allclose(accumulated, big_batch, rtol=1e-5), "the average doesn't count updates"
