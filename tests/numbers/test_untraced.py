"""Limits: calls in traced functions, debuggers, and variables and classes that aren't Keras's."""

import contextlib

import hosts
import numpy as np
import pytest
from cases import quick_first
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, weights

not_keras2 = pytest.mark.skipif(hosts.IS_KERAS2, reason="graphs of TensorFlow 1 are traced")


def traced(function):
    if hosts.IS_TENSORFLOW:
        return hosts.tf.function(function)
    if hosts.IS_TORCH:
        import torch

        return torch.compile(function, backend="eager", fullgraph=True)
    import jax

    return jax.jit(function)


@not_keras2
@pytest.mark.parametrize("is_stateless", [False, True])
def test_apply_partial_window_is_refused_in_a_traced_function(is_stateless):
    """Nothing is written and no tracer escapes, so the window can be closed afterwards."""
    if is_stateless and hosts.BACKEND != "jax":
        pytest.skip("only JAX has a stateless scope")
    optimizer, w = hosts.ours("SGD", accum_iters=3), hosts.variable([1.0, 2.0], "w")
    hosts.apply(optimizer, [np.ones(2, hosts.FLOATX)], [w])
    close, state = optimizer.apply_partial_window, []
    if is_stateless:
        state = [[v.value for v in optimizer.variables]]

        def close(state):
            with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, state))):
                optimizer.apply_partial_window()

    with pytest.raises(Exception, match="call it between train steps") as refusal:
        traced(close)(*state)
    assert isinstance(refusal.value, RuntimeError)
    assert optimizer.window_position == 1
    optimizer.apply_partial_window()
    assert (optimizer.window_position, optimizer.completed_updates) == (0, 1)
    assert (hosts.array(w) < [1.0, 2.0]).all()


def test_no_attribute_has_the_name_of_a_property():
    """If a property of this name reads it, the tracer of PyTorch 2.11 calls this without end."""
    cls, optimizer = type(hosts.ours("SGD", accum_iters=3)), hosts.ours("SGD", accum_iters=3)
    properties = {name for name in dir(cls) if isinstance(getattr(cls, name), property)}
    assert "_accumulation" in vars(optimizer) and properties.isdisjoint(vars(optimizer))


@pytest.mark.skipif(not hosts.IS_TORCH, reason="only PyTorch has torch.compile")
def test_torch_compile_refuses_a_conditional(monkeypatch):
    """If every micro-batch updates, there is no conditional to refuse."""
    w, gradient = hosts.variable([1.0, 2.0], "w"), np.ones(2, hosts.FLOATX)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    with pytest.raises(ValueError, match="gate='conditional' can't be used in torch.compile"):
        hosts.apply(hosts.ours("Adam", accum_iters=2, gate="conditional"), [gradient], [w])
    always = hosts.ours("Adam", decay=0.25, gate="conditional")
    hosts.apply(always, [gradient], [w])
    assert always.completed_updates == 1


@not_keras2
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="about tf.Variable")
@pytest.mark.usefixtures("every_gate")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_variable_of_tensorflow(dtype):
    """In a custom loop, which the stock optimizer supports as well."""
    tf = hosts.tf

    def run(optimizer, steps):
        # Both have the same name. Their accumulators are kept apart all the same.
        arguments = {"dtype": dtype, "name": "v", "constraint": lambda weight: weight / 2}
        vs = [tf.Variable(value, **arguments) for value in ([1.0, 2.0], [3.0])]
        for _ in range(steps):
            grads = [tf.constant([0.5, -1.0], dtype), tf.constant([2.0], dtype)]
            optimizer.apply_gradients(zip(grads, vs))
        return {str(i): tf.cast(v, "float32").numpy() for i, v in enumerate(vs)}

    expected = run(hosts.stock("SGD", learning_rate=0.25), 2)
    optimizer = hosts.ours("SGD", accum_iters=2, learning_rate=0.25)
    assert_equal(run(optimizer, 4), expected, rtol=0, atol=0)
    assert optimizer.completed_updates == 2


@not_keras2
@pytest.mark.filterwarnings("ignore:.*does not have any trainable weights:UserWarning")
def test_a_model_without_trainable_weights():
    """A callback changes nothing in such a training."""
    model = dense_model()
    model.trainable = False
    compiled(model, hosts.ours("SGD", accum_iters=LENGTH), run_eagerly=False)
    before = weights(model)
    fit(model, MICRO, epochs=1, callbacks=[hosts.accum.AccumulationMonitor()])
    assert_equal(weights(model), before, rtol=0, atol=0)
    assert model.optimizer.completed_updates == 0


@contextlib.contextmanager
def looking_for_nan():
    if hosts.IS_TENSORFLOW:
        hosts.tf.debugging.enable_check_numerics()
        yield
        hosts.tf.debugging.disable_check_numerics()
    else:
        import jax

        with jax.debug_nans(True):
            yield


@not_keras2
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch's debugger looks at `backward` alone")
@quick_first("gate", ["conditional", "select"])
def test_a_monitor_with_nan_debuggers_switched_on(gate):
    monitor = hosts.accum.AccumulationMonitor()
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=LENGTH, gate=gate))
    arrays = [array[: (LENGTH + 1) * MICRO] for array in data()]
    with looking_for_nan():
        history = fit(model, MICRO, arrays, epochs=1, callbacks=[monitor]).history
    assert history["completed_updates"] == [2]
