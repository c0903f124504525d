"""On JAX, `apply_partial_window` needs the state that a loop has in its own variables."""

import hosts
import numpy as np
import pytest
from steps import gradients, made

if hosts.BACKEND != "jax":
    pytest.skip("on JAX, steps return a state", allow_module_level=True)

import jax


@pytest.mark.parametrize("is_jitted", [True, False])
def test_a_partial_window_before_the_state_is_put_back(is_jitted):
    ours, mine = made(hosts.ours("SGD", learning_rate=0.5, accum_iters=4))
    step = jax.jit(ours.stateless_apply) if is_jitted else ours.stateless_apply
    state, weights = ([v.value for v in each] for each in (ours.variables, mine))
    for grads in gradients()[0][:3]:
        weights, state = step(state, grads, weights)
    before = [hosts.array(v) for v in mine]
    with pytest.raises(RuntimeError, match="put the state back"):
        ours.apply_partial_window()
    for v, value in zip([*mine, *ours.variables], [*weights, *state]):
        v.assign(value)
    ours.apply_partial_window()
    assert (ours.completed_updates, ours.window_position) == (1, 0)
    assert all(np.abs(hosts.array(v) - old).min() > 0 for v, old in zip(mine, before))
    ours.apply_partial_window()  # no window is open
