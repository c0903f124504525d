"""An update whenever a window has seen 60 tokens, as their mean. TensorFlow."""

import keras
import numpy as np
import tensorflow as tf

from keras_accum import AdamAccumulate

TOKENS = 60
keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
micro_batches = []
for length in (3, 8, 5, 2, 9, 4, 7, 6):  # a micro-batch is 4 sequences of one length
    x, y = (random.uniform(0.5, 1, (4, length, n)).astype("float32") for n in (8, 2))
    micro_batches.append((x, y))

model = keras.Sequential([keras.Input((None, 8)), keras.layers.Dense(2)])
optimizer = AdamAccumulate(1e-3, accum_iters=None)
optimizer.build(model.trainable_variables)
seen = tf.Variable(0.0)  # the tokens of the open window


@tf.function(reduce_retracing=True)
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)  # over the tokens of x
    gradients = tape.gradient(loss, model.trainable_variables)
    tokens = tf.cast(tf.shape(x)[0] * tf.shape(x)[1], tf.float32)
    is_full = seen + tokens >= TOKENS
    optimizer.weigh(tokens)
    optimizer.close_window(is_full)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    seen.assign(tf.where(is_full, 0.0, seen + tokens))


for epoch in range(2):
    for x, y in micro_batches:
        train_step(x, y)
    optimizer.apply_partial_window()  # the tokens that are left
    seen.assign(0.0)
    print(f"epoch {epoch}: {optimizer.completed_updates} updates")
