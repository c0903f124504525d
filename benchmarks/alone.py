"""An optimizer without a model: 20 M parameters, the gradients given. It runs on Python 3.7."""

import numpy as np

NAME = "optimizer alone, 20 M"
SHAPES = [(5_000_000,)] * 4


def windows(host, keras, optimizer, micro_batches):
    """A function that applies the same gradients so many times."""
    backend = keras.backend.backend() if host == "keras3" else host
    step = {
        "tensorflow": tensorflow_step,
        "tf_keras": tensorflow_step,
        "jax": jax_step,
        "torch": torch_step,
        "keras2": keras2_step,
    }[backend](keras, optimizer, SHAPES)

    def run():
        for _ in range(micro_batches - 1):
            step()
        wait(step())

    return run


def wait(result):
    """JAX returns before it has computed."""
    for array in result or ():
        getattr(array, "block_until_ready", lambda: None)()


def tensorflow_step(keras, optimizer, shapes):
    import tensorflow as tf

    variables = [tf.Variable(tf.random.normal(shape)) for shape in shapes]
    grads = [tf.random.normal(shape) for shape in shapes]

    @tf.function
    def step():
        optimizer.apply_gradients(zip(grads, variables))

    return step


def torch_step(keras, optimizer, shapes):
    variables = [keras.Variable(np.random.normal(size=shape)) for shape in shapes]
    grads = [keras.random.normal(shape) for shape in shapes]
    return lambda: optimizer.apply(grads, variables)


def jax_step(keras, optimizer, shapes):
    import jax

    variables = [keras.Variable(np.random.normal(size=shape)) for shape in shapes]
    grads = [keras.random.normal(shape) for shape in shapes]
    optimizer.build(variables)
    apply = jax.jit(
        lambda weights, state: optimizer.stateless_apply(state, grads, weights),
        donate_argnums=(0, 1),
    )
    values = [v.value for v in variables], [v.value for v in optimizer.variables]

    def step():
        nonlocal values
        values = apply(*values)
        return values[0]

    return step


def keras2_step(keras, optimizer, shapes):
    K = keras.backend
    variables = [K.variable(np.random.normal(size=shape)) for shape in shapes]
    grads = [K.variable(np.random.normal(size=shape)) for shape in shapes]
    # The gradient of this is what is given, and its value isn't asked for.
    loss = sum(K.sum(g * v) for g, v in zip(grads, variables))
    updates = optimizer.get_updates(loss=loss, params=variables)
    function = K.function([], [K.constant(0.0)], updates=updates)
    return lambda: function([]) and None
