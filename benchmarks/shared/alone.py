"""An optimizer without a model, applied to given gradients. This module runs on Python 3.7.

Each function returns an `Alone`: `step()` applies the gradients once, and `size()` is the number of
operations in TensorFlow's graph, or of equations in JAX's program. In `step(is_update)`, Python
decides whether the step makes an update.
"""

from collections import namedtuple

import numpy as np

NAME = "optimizer alone, 20 M"
SHAPES = [(5_000_000,)] * 4

Alone = namedtuple("Alone", "step size")


def make(host, keras, optimizer, shapes, xla=False):
    """Return an `Alone` for this host.

    `xla` is for TensorFlow, which compiles only when asked to.
    """
    backend = keras.backend.backend() if host == "keras3" else host
    if xla:
        return on_tensorflow(keras, optimizer, shapes, jit_compile=True)
    made = {
        "tensorflow": on_tensorflow,
        "tf_keras": on_tensorflow,
        "jax": on_jax,
        "torch": on_torch,
        "keras2": on_keras_2,
    }
    return made[backend](keras, optimizer, shapes)


def windows(host, keras, optimizer, micro_batches, xla=False, decide=None):
    """Return a function that applies gradients of 20 M parameters this many times.

    If Python decides, `decide` is the length of the windows.
    """
    step = make(host, keras, optimizer, SHAPES, xla).step
    decisions = [[i % decide == 0] if decide else [] for i in range(1, micro_batches + 1)]

    def run():
        for decision in decisions[:-1]:
            step(*decision)
        wait(step(*decisions[-1]))

    return run


def wait(result):
    """Wait for the result, since JAX returns before it has computed."""
    for array in result or ():
        array.block_until_ready()


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

    def size():
        graph = step.get_concrete_function().graph.as_graph_def()
        return len(graph.node) + sum(len(f.node_def) for f in graph.library.function)

    return Alone(step, size)


def on_torch(keras, optimizer, shapes):
    variables = [keras.Variable(np.random.normal(size=shape)) for shape in shapes]
    grads = [keras.random.normal(shape) for shape in shapes]
    return Alone(lambda: optimizer.apply(grads, variables), lambda: None)


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

    return Alone(step, lambda: _equations(jax.make_jaxpr(apply)(*values).jaxpr))


def _equations(program):
    """The number of equations, including those of programs inside."""
    inner = (p for e in program.eqns for v in e.params.values() for p in _programs(v))
    return len(program.eqns) + sum(map(_equations, inner))


def _programs(value):
    values = value if isinstance(value, (tuple, list)) else [value]
    found = (getattr(v, "jaxpr", v) for v in values)
    return [v for v in found if hasattr(v, "eqns")]


def on_keras_2(keras, optimizer, shapes):
    K = keras.backend
    variables = [K.variable(np.random.normal(size=shape)) for shape in shapes]
    grads = [K.variable(np.random.normal(size=shape)) for shape in shapes]
    # The gradient of this sum is the given gradient. The sum itself isn't computed.
    loss = sum(K.sum(g * v) for g, v in zip(grads, variables))
    updates = optimizer.get_updates(loss=loss, params=variables)
    function = K.function([], [K.constant(0.0)], updates=updates)
    return Alone(lambda: function([]) and None, lambda: len(loss.graph.get_operations()))
