"""Hand-written training loops: eager, in a tf.function, in a jitted JAX step, in PyTorch."""

import hosts
import numpy as np
import pytest
from cases import CASES
from training import BIG, LENGTH, MICRO, assert_equal, assert_moved, batches

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
tensorflow_only = pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="a TensorFlow loop")
jax_only = pytest.mark.skipif(hosts.BACKEND != "jax", reason="a JAX loop")
torch_only = pytest.mark.skipif(not hosts.IS_TORCH, reason="a PyTorch loop")

START = {"w": np.array([[0.5, -0.25], [0.375, 0.5], [-0.5, 0.25]]), "b": np.array([0.25, -0.5])}


def loss(w, b, x, y):
    """The mean squared error of a linear model, in the operators that all backends have."""
    return (((x @ w + b) - y) ** 2).mean()


def tensorflow_loss(w, b, x, y):
    return hosts.tf.reduce_mean((x @ w + b - y) ** 2)


def new_variables():
    return [hosts.variable(value, name) for name, value in START.items()]


def found(optimizer, variables):
    slots = hosts.slots(optimizer, variables)
    values = dict(zip(START, variables), **slots)
    return {name: hosts.array(value) for name, value in values.items()}


def both_sides(case, loop):
    """Run a loop with stock and big batches, then with ours and micro-batches, and compare."""
    expected = loop(hosts.stock(case.name, **case.arguments), BIG)
    actual = loop(hosts.ours(case.name, accum_iters=LENGTH, **case.arguments), MICRO)
    assert_moved(START, {name: expected[name] for name in START})
    assert_equal(actual, expected)


@tensorflow_only
@every_case
@pytest.mark.parametrize("way", ["eager", "tf.function", "jit_compile"])
def test_apply_gradients(case, way):
    def loop(optimizer, size):
        variables = new_variables()
        native = [hosts.native(v) for v in variables]

        def step(x, y):
            with hosts.tf.GradientTape() as tape:
                value = tensorflow_loss(*native, x, y)
            optimizer.apply_gradients(zip(tape.gradient(value, native), variables))

        if way != "eager":
            # The legacy AMSGrad has a kernel that XLA can't compile. Ours must do without.
            stock_without_xla = size == BIG
            xla = way == "jit_compile" and not stock_without_xla
            step = hosts.tf.function(step, jit_compile=xla)
        for i, (x, y) in enumerate(batches(size)):
            step(hosts.tf.constant(x), hosts.tf.constant(y))
            if i == 0 and way != "eager":
                traces = step.experimental_get_tracing_count()
        if way != "eager":
            assert step.experimental_get_tracing_count() == traces, "traced again"
        return found(optimizer, variables)

    both_sides(case, loop)


@jax_only
@every_case
def test_jitted_stateless_apply(case):
    import jax

    def loop(optimizer, size):
        variables = new_variables()
        optimizer.build(variables)
        weights = [v.value for v in variables]
        state = [v.value for v in optimizer.variables]
        traces = []

        @jax.jit
        def step(weights, state, x, y):
            traces.append(1)
            gradients = jax.grad(lambda weights: loss(*weights, x, y))(weights)
            return optimizer.stateless_apply(state, gradients, weights)

        for x, y in batches(size):
            weights, state = step(weights, state, x, y)
        assert len(traces) == 1, "traced again"
        for variable, value in zip([*variables, *optimizer.variables], [*weights, *state]):
            variable.assign(value)
        return found(optimizer, variables)

    both_sides(case, loop)


@jax_only
@every_case
def test_eager_apply(case):
    import jax

    def loop(optimizer, size):
        variables = new_variables()
        for x, y in batches(size):
            weights = [v.value for v in variables]
            gradients = jax.grad(lambda weights, x, y: loss(*weights, x, y))(weights, x, y)
            optimizer.apply(gradients, variables)
        return found(optimizer, variables)

    both_sides(case, loop)


@torch_only
@every_case
@pytest.mark.parametrize("stateless", [False, True], ids=["apply", "stateless_apply"])
def test_torch_loop(case, stateless):
    import torch

    def loop(optimizer, size):
        variables = new_variables()
        optimizer.build(variables)
        for x, y in batches(size):
            for variable in variables:
                variable.value.grad = None
            loss(*(v.value for v in variables), torch.tensor(x), torch.tensor(y)).backward()
            gradients = [v.value.grad for v in variables]
            with torch.no_grad():
                if stateless:
                    apply_stateless(optimizer, gradients, variables)
                else:
                    optimizer.apply(gradients, variables)
        return found(optimizer, variables)

    def apply_stateless(optimizer, gradients, variables):
        state = [v.value for v in optimizer.variables]
        weights = [v.value for v in variables]
        copies = [tensor.clone() for tensor in state + weights + gradients]
        new_weights, new_state = optimizer.stateless_apply(state, gradients, weights)
        if hasattr(optimizer, "accum_iters"):  # the stock optimizer isn't so careful
            for tensor, copy in zip(state + weights + gradients, copies):
                assert torch.equal(tensor, copy), "the caller's tensor was written"
        for variable, value in zip([*variables, *optimizer.variables], [*new_weights, *new_state]):
            variable.assign(value.clone())

    both_sides(case, loop)


@every_case
def test_apply_without_variables(case):
    """Once built, Keras 3 optimizers know them; Keras 2 takes pairs."""
    if not hosts.IS_KERAS3:
        pytest.skip("Keras 2 takes pairs of gradient and variable")

    def loop(optimizer, size):
        variables = new_variables()
        optimizer.build(variables)
        for _ in range(6 * BIG // size):
            optimizer.apply([hosts.keras.ops.ones_like(v) for v in variables])
        return found(optimizer, variables)

    both_sides(case, loop)
