"""A GAN: both gradients are taken before either update. TensorFlow."""

import keras
import numpy as np
import tensorflow as tf

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
noise, real = (random.uniform(0.5, 1, (107, n)).astype("float32") for n in (8, 2))
micro_batches = tf.data.Dataset.from_tensor_slices((noise, real)).batch(10)

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])  # the generator
judge = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
pairs = [(net, AdamAccumulate(1e-3, accum_iters=5)) for net in (model, judge)]
for net, optimizer in pairs:
    optimizer.build(net.trainable_variables)
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_step(noise, real):
    with tf.GradientTape(persistent=True) as tape:
        of_fake, of_real = judge(model(noise)), judge(real)
        one = tf.ones_like(of_fake)
        losses = loss_of(one, of_fake), loss_of(one, of_real) + loss_of(1 - one, of_fake)
    nets = model, judge
    gradients = [tape.gradient(loss, net.trainable_variables) for loss, net in zip(losses, nets)]
    for of_net, (net, optimizer) in zip(gradients, pairs):
        optimizer.weigh(tf.shape(noise)[0])  # what the losses divide by
        optimizer.apply_gradients(zip(of_net, net.trainable_variables))


for epoch in range(3):
    for batch in micro_batches:
        train_step(*batch)
    for _, optimizer in pairs:
        optimizer.apply_partial_window()  # with the micro-batches that are left
    print(f"epoch {epoch}: {optimizer.completed_updates} updates")
