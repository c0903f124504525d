"""A loop with stateless_apply and jit. JAX."""

import jax
import keras
import numpy as np

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = (random.uniform(0.5, 1, (100, n)).astype("float32") for n in (8, 2))

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
optimizer = AdamAccumulate(1e-3, accum_iters=5)
optimizer.build(model.trainable_variables)


def loss_of(trainable, others, x, y):
    y_pred, others = model.stateless_call(trainable, others, x, training=True)
    return keras.ops.mean((y_pred - y) ** 2), others


@jax.jit
def train_step(state, x, y):
    trainable, others, slots = state
    gradient_of = jax.value_and_grad(loss_of, has_aux=True)
    (loss, others), gradients = gradient_of(trainable, others, x, y)
    trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
    return (trainable, others, slots), loss


variables = model.trainable_variables, model.non_trainable_variables, optimizer.variables
state = tuple([v.value for v in part] for part in variables)
for _epoch in range(2):
    for i in range(0, 100, 10):
        state, loss = train_step(state, x[i : i + 10], y[i : i + 10])

for part, values in zip(variables, state):  # back into the model, to save it
    for variable, value in zip(part, values):
        variable.assign(value)
print(f"{optimizer.completed_updates} updates, loss {float(loss):.4f}")
