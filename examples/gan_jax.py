"""A GAN with stateless_apply and jit: both gradients are taken before either update. JAX."""

import jax
import keras
import numpy as np

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
noise, real = (random.uniform(0.5, 1, (107, n)).astype("float32") for n in (8, 2))

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])  # the generator
judge = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
pairs = [(net, AdamAccumulate(1e-3, accum_iters=5)) for net in (model, judge)]
for net, optimizer in pairs:
    optimizer.build(net.trainable_variables)
variables = (
    [net.trainable_variables for net, _ in pairs],
    [net.non_trainable_variables for net, _ in pairs],
    [optimizer.variables for _, optimizer in pairs],
)
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)


def losses_of(weights, others, noise, real):
    fake, of_model = model.stateless_call(weights[0], others[0], noise, training=True)
    of_fake, of_judge = judge.stateless_call(weights[1], others[1], fake, training=True)
    of_real, of_judge = judge.stateless_call(weights[1], of_judge, real, training=True)
    one = keras.ops.ones_like(of_fake)
    losses = loss_of(one, of_fake), loss_of(one, of_real) + loss_of(1 - one, of_fake)
    return losses, [of_model, of_judge]


@jax.jit
def train_step(state, noise, real):
    weights, others, slots = state  # lists, with a part per network
    losses, pull, others = jax.vjp(
        lambda weights: losses_of(weights, others, noise, real), weights, has_aux=True
    )
    gradients = pull((1.0, 0.0))[0][0], pull((0.0, 1.0))[0][1]  # each of its own loss
    for i, (_, optimizer) in enumerate(pairs):
        optimizer.weigh(len(noise))  # what the losses divide by
        weights[i], slots[i] = optimizer.stateless_apply(slots[i], gradients[i], weights[i])
    return (weights, others, slots), losses


for epoch in range(3):
    # In each epoch: `apply_partial_window` has changed the variables
    state = jax.tree.map(lambda v: v.value, variables)
    for i in range(0, len(noise), 10):
        state, losses = train_step(state, noise[i : i + 10], real[i : i + 10])
    jax.tree.map(lambda v, value: v.assign(value), variables, state)  # put it back
    for _, optimizer in pairs:
        optimizer.apply_partial_window()  # with the micro-batches that are left
    print(f"epoch {epoch}: {optimizer.completed_updates} updates")
