"""An optimizer without a model, applied to given gradients. This module runs on Python 3.7."""

import numpy as np

NAME = "optimizer alone, 20 M"
SHAPES = [(5_000_000,)] * 4


def windows(host, keras, optimizer, micro_batches, shapes=SHAPES, xla=False, decide=None):
    """Return a function that applies gradients this many times.

    `xla` is for TensorFlow, which compiles only when asked to. If Python decides whether a step
    makes an update, `decide` is the length of the windows.
    """
    make = {"tensorflow": on_tensorflow, "jax": on_jax, "torch": on_torch, "keras2": on_keras_2}
    backend = keras.backend.backend() if host == "keras3" else host
    made = make.get(backend, on_tensorflow)
    step = made(keras, optimizer, shapes, **({"jit_compile": True} if xla else {}))
    decisions = [[i % decide == 0] if decide else [] for i in range(1, micro_batches + 1)]

    def run():
        for decision in decisions:
            result = step(*decision)
        for array in result or ():  # of JAX, which returns before it has computed
            array.block_until_ready()

    return run


def on_tensorflow(keras, optimizer, shapes, jit_compile=False):
    import tensorflow as tf

    # Of Keras 3's own kind, as in a model; tf_keras has none.
    variable = getattr(keras, "Variable", tf.Variable)
    variables = [variable(tf.random.normal(shape)) for shape in shapes]
    grads = [tf.random.normal(shape) for shape in shapes]
    if hasattr(optimizer, "build"):  # a compiled function can't create variables
        optimizer.build(variables)

    @tf.function(jit_compile=jit_compile)
    def step(is_update=None):
        if is_update is not None:
            optimizer.decide(is_update)
        optimizer.apply_gradients(zip(grads, variables))

    return step


def on_torch(keras, optimizer, shapes):
    variables = [keras.Variable(np.random.normal(size=shape)) for shape in shapes]
    grads = [keras.random.normal(shape) for shape in shapes]
    return lambda: optimizer.apply(grads, variables)


def on_jax(keras, optimizer, shapes):
    import jax

    variables = [keras.Variable(np.random.normal(size=shape)) for shape in shapes]
    grads = [keras.random.normal(shape) for shape in shapes]
    optimizer.build(variables)

    def apply(weights, state, is_update=None):
        if is_update is not None:
            optimizer.decide(is_update)
        return optimizer.stateless_apply(state, grads, weights)

    compiled = jax.jit(apply, donate_argnums=(0, 1), static_argnums=2)
    values = [v.value for v in variables], [v.value for v in optimizer.variables]

    def step(is_update=None):
        nonlocal values
        values = compiled(*values, is_update)
        return values[0]

    return step


def on_keras_2(keras, optimizer, shapes):
    K = keras.backend
    variables = [K.variable(np.random.normal(size=shape)) for shape in shapes]
    grads = [K.variable(np.random.normal(size=shape)) for shape in shapes]
    # The gradient of this sum is the given gradient. The sum itself isn't computed.
    loss = sum(K.sum(g * v) for g, v in zip(grads, variables))
    updates = optimizer.get_updates(loss=loss, params=variables)
    function = K.function([], [K.constant(0.0)], updates=updates)
    return lambda: function([]) and None
