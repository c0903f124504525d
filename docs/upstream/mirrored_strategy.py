"""`fit` under `MirroredStrategy` ends in a RuntimeError (keras issue 20582). Needs TensorFlow.

Keras 3.15: `ops.cond` runs the update inside a conditional, where no reduction over the replicas
may start.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def train(optimizer, batch_size):
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(optimizer(), loss="mean_squared_error", jit_compile=False)
    x = np.arange(8, dtype="float32").reshape(8, 1) / 8
    model.fit(x, -x, batch_size=batch_size, shuffle=False, verbose=0)
    return model.get_weights()[0]


big_batch = train(lambda: keras.optimizers.SGD(0.5), batch_size=8)
accumulated = train(lambda: keras.optimizers.SGD(0.5, gradient_accumulation_steps=4), batch_size=2)
print("the big batch:", big_batch, "accumulated:", accumulated)
assert np.allclose(accumulated, big_batch, rtol=1e-5), "accumulated isn't the big batch"
