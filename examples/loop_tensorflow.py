"""A loop with GradientTape and tf.data. TensorFlow."""

import keras
import numpy as np
import tensorflow as tf

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = (random.uniform(0.5, 1, (100, n)).astype("float32") for n in (8, 2))
micro_batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(10, drop_remainder=True)

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
optimizer = AdamAccumulate(1e-3, accum_iters=5)
optimizer.build(model.trainable_variables)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # on every micro-batch
    return loss


for _epoch in range(2):
    for x_micro, y_micro in micro_batches:
        loss = train_step(x_micro, y_micro)
optimizer.apply_partial_window()  # does nothing here: 20 micro-batches are 4 windows
print(f"{optimizer.completed_updates} updates, loss {float(loss):.4f}")
