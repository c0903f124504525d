"""On JAX, `apply_partial_window` needs the state that a loop has in its own variables."""

import hosts
import numpy as np
import pytest
from steps import gradients, made

if hosts.BACKEND != "jax":
    pytest.skip("on JAX, steps return a state", allow_module_level=True)

import jax


@pytest.mark.parametrize("how", ["eager", "jitted", "traced, not run", "eval_shape"])
def test_a_partial_window_before_the_state_is_put_back(how):
    """Somebody who compiles in advance has traced a step and run none."""
    ours, mine = made(hosts.ours("SGD", learning_rate=0.5, accum_iters=4))
    window, start = gradients()[0][:3], [hosts.array(v) for v in mine]
    step = ours.stateless_apply if how == "eager" else jax.jit(ours.stateless_apply)
    if how == "eval_shape":  # and no window is open
        jax.eval_shape(step, [v.value for v in ours.variables], window[0], [v.value for v in mine])
        with pytest.raises(RuntimeError, match=r"after `jax\.eval_shape`, call it again"):
            ours.apply_partial_window()
        ours.apply_partial_window()
        assert (ours.completed_updates, ours.window_position) == (0, 0)
        return
    if how == "traced, not run":
        for grads in window:
            hosts.apply(ours, grads, mine)
    state, weights = ([v.value for v in each] for each in (ours.variables, mine))
    if how == "traced, not run":
        step.lower(state, window[0], weights)
    else:
        for grads in window:
            weights, state = step(state, grads, weights)
    with pytest.raises(RuntimeError, match="put the state back"):
        ours.apply_partial_window()
    for v, value in zip([*mine, *ours.variables], [*weights, *state]):
        v.assign(value)
    ours.apply_partial_window()
    assert (ours.completed_updates, ours.window_position) == (1, 0)
    for v, old, grads in zip(mine, start, zip(*window)):
        assert v.constraint or np.allclose(hosts.array(v), old - np.mean(grads, axis=0) / 2)
    ours.apply_partial_window()  # no window is open


def test_a_loop_that_goes_on_with_the_state_from_before():
    """After `apply_partial_window`, it is an error, and not a window that is made twice."""
    ours, mine = made(hosts.ours("SGD", learning_rate=0.5, accum_iters=4))
    step = jax.jit(ours.stateless_apply)
    state, weights = ([v.value for v in each] for each in (ours.variables, mine))
    for grads in gradients()[0][:3]:
        weights, state = step(state, grads, weights)
    for v, value in zip([*mine, *ours.variables], [*weights, *state]):
        v.assign(value)
    ours.apply_partial_window()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        step(state, gradients()[0][0], weights)
    weights, state = ([v.value for v in each] for each in (mine, ours.variables))
    step(state, gradients()[0][0], weights)
