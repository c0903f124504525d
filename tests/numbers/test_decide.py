"""`decide`: in a loop of one's own, Python decides which micro-batch makes the update."""

import hosts
import numpy as np
import pytest
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first
from graphs import CONTROL_FLOW
from steps import assert_windows_equal_big_batches, gradients, made, stepper, weights_and_state
from training import assert_equal

LENGTHS = [2, 1, 3, 2]
can_decide = keras2_has_no("`decide`")


def adam(**arguments):
    return hosts.ours("Adam", **{**CASES["adam"].arguments, "accum_iters": 3, **arguments})


def deciding(ours, mine):
    return stepper(ours, mine, ours.decide, is_static=True)


@can_decide
@on_adam_and_amsgrad
@quick_first("accum_iters", [None, 3])
@pytest.mark.usefixtures("every_gate")
def test_windows_equal_big_batches(case, accum_iters):
    ours, mine = made(hosts.ours(case.name, **{**case.arguments, "accum_iters": accum_iters}))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    step, windows = deciding(ours, mine), gradients(LENGTHS)
    assert_windows_equal_big_batches(ours, stock, mine, theirs, windows, step)
    if hosts.IS_TENSORFLOW:  # the traces of an update and of an addition
        for is_update in (True, False):
            graph = step.traced.get_concrete_function(is_update, *windows[0][0]).graph
            types = {op.type for op in graph.get_operations()}
            assert ("Sqrt" in types or "ResourceApplyAdam" in types) == is_update
            assert not CONTROL_FLOW & types


@can_decide
def test_a_window_may_be_longer_than_its_length_and_counters_go_on_from_there():
    ours, mine = made(adam(accum_iters=2))
    step, window = deciding(ours, mine), gradients()[0]
    for grads in window[:3]:
        step(grads, False)
    assert (ours.completed_updates, ours.window_position) == (0, 3)
    stepper(ours, mine)(window[3])  # the counters decide: the window is full
    assert (ours.completed_updates, ours.window_position) == (1, 0)


@can_decide
def test_accum_iters_1_has_only_updates():
    ours, mine = made(adam(accum_iters=1))
    deciding(ours, mine)(gradients()[0][0], True)
    assert ours.completed_updates == 1
    with pytest.raises(ValueError, match=r"`decide\(False\)` needs accumulators"):
        ours.decide(False)


@can_decide
@pytest.mark.parametrize("options", [{"skip_nonfinite": True}, {"skip_norm": 10.0}])
def test_what_only_the_device_knows(options):
    with pytest.raises(ValueError, match=f"`decide` can't be used with {next(iter(options))}"):
        adam(**options).decide(True)


@can_decide
def test_a_decision_is_a_boolean():
    with pytest.raises(TypeError, match=r"must be a Python boolean.*`close_window\(when\)`"):
        adam().decide(hosts.keras.backend.ones(()) if hosts.IS_TF_KERAS else np.ones(()))


@can_decide
def test_one_of_two_ways():
    ours, mine = made(adam())

    def both(is_update):
        ours.decide(is_update)
        ours.close_window()

    with pytest.raises(ValueError, match="can't be used with PythonGate or `decide`"):
        stepper(ours, mine, both, is_static=True)(gradients()[0][0], True)


@can_decide
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch is eager")
def test_outside_of_the_traced_function():
    ours, mine = made(adam())
    ours.decide(True)
    with pytest.raises(ValueError, match="`decide` was called outside of the traced function"):
        stepper(ours, mine)(gradients()[0][0])


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="about Keras 2.0 to 2.3")
def test_keras_2_has_no_train_step():
    with pytest.raises(RuntimeError, match="isn't available on Keras 2.*gate='conditional'"):
        adam().decide(True)


@can_decide
@pytest.mark.skipif(hosts.BACKEND != "jax", reason="about JAX's loops")
def test_a_window_in_one_jax_program():
    """The micro-batches before the last one in `lax.scan`, then the update: one program."""
    import jax

    ours, mine = made(adam())
    stock, theirs = made(hosts.stock("Adam", **CASES["adam"].arguments))
    window = gradients()[2]

    @jax.jit
    def run(weights, state, gradients):
        def add(carry, gradients):
            weights, state = carry
            ours.decide(False)
            return ours.stateless_apply(state, gradients, weights), None

        before, last = [g[:-1] for g in gradients], [g[-1] for g in gradients]
        (weights, state), _ = jax.lax.scan(add, (weights, state), before)
        ours.decide(True)
        return ours.stateless_apply(state, last, weights)

    stacked = [np.stack(g) for g in zip(*window)]
    values = run([v.value for v in mine], [v.value for v in ours.variables], stacked)
    for v, value in zip([*mine, *ours.variables], [*values[0], *values[1]]):
        v.assign(value)
    stepper(stock, theirs)([np.mean(g, axis=0) for g in zip(*window)])
    assert_equal(weights_and_state(ours, mine), weights_and_state(stock, theirs))
