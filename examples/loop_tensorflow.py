"""A loop with GradientTape and tf.data. TensorFlow."""

import keras
import numpy as np
import tensorflow as tf

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = (random.uniform(0.5, 1, (107, n)).astype("float32") for n in (8, 2))
micro_batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
optimizer = AdamAccumulate(1e-3, accum_iters=5)
optimizer.build(model.trainable_variables)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.weigh(tf.shape(x)[0])  # what the loss divides by
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # on every micro-batch
    return loss


for epoch in range(3):
    for x_micro, y_micro in micro_batches:
        loss = train_step(x_micro, y_micro)
    optimizer.apply_partial_window()  # with the micro-batches that are left
    print(f"epoch {epoch}: {optimizer.completed_updates} updates, loss {float(loss):.4f}")
