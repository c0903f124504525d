"""A compiled step on JAX needs three more copies of the weights than the stock optimizer.

Keras 3.15: `JaxOptimizer` updates everything at every micro-batch, and `jax.lax.cond` then chooses
between all the new values and all the old ones, so both exist at the same time. XLA keeps these
conditionals, and copies the arrays that go through them. On a GPU, the host waits at each of them.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

SIZE = 1_000_000


def compiled(optimizer):
    """Return a step's temporary memory, in copies of the weights, and its conditionals."""
    weight = keras.Variable(np.zeros(SIZE, "float32"))
    optimizer.build([weight])

    def step(weights, state, gradient):
        return optimizer.stateless_apply(state, [gradient], weights)

    state = [variable.value for variable in optimizer.variables]
    gradient = np.ones(SIZE, "float32")
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower([weight.value], state, gradient)
    program = lowered.compile()
    copies = program.memory_analysis().temp_size_in_bytes / gradient.nbytes
    return copies, program.as_text().count(" conditional(")


stock, _ = compiled(keras.optimizers.Adam())
accumulating, conditionals = compiled(keras.optimizers.Adam(gradient_accumulation_steps=4))
print(f"temporary copies of the weights, stock: {stock:.1f}, accumulating: {accumulating:.1f}")
print("conditionals, accumulating:", conditionals)
assert not conditionals and accumulating < stock + 0.5, "a step makes copies"
