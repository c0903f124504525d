"""A loop with stateless_apply and jit. JAX."""

import jax
import keras
import numpy as np

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = (random.uniform(0.5, 1, (107, n)).astype("float32") for n in (8, 2))

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
optimizer = AdamAccumulate(1e-3, accum_iters=5)
optimizer.build(model.trainable_variables)
variables = model.trainable_variables, model.non_trainable_variables, optimizer.variables


def take_state():
    return tuple([v.value for v in part] for part in variables)


def put_back(state):
    for part, values in zip(variables, state):
        for variable, value in zip(part, values):
            variable.assign(value)


def loss_of(trainable, others, x, y):
    y_pred, others = model.stateless_call(trainable, others, x, training=True)
    return keras.ops.mean((y_pred - y) ** 2), others


@jax.jit
def train_step(state, x, y):
    trainable, others, slots = state
    gradient_of = jax.value_and_grad(loss_of, has_aux=True)
    (loss, others), gradients = gradient_of(trainable, others, x, y)
    optimizer.weigh(len(x))  # what the loss divides by
    trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
    return (trainable, others, slots), loss


for epoch in range(3):
    state = take_state()  # in each epoch: `apply_partial_window` has changed the variables
    for i in range(0, len(x), 10):
        state, loss = train_step(state, x[i : i + 10], y[i : i + 10])
    put_back(state)
    optimizer.apply_partial_window()  # with the micro-batches that are left
    print(f"epoch {epoch}: {optimizer.completed_updates} updates, loss {float(loss):.4f}")
