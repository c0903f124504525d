"""All gates give equal numbers and equal states. torch.compile refuses a conditional."""

import hosts
import numpy as np
import pytest
from cases import on_adam_and_amsgrad, quick_first
from training import (
    LENGTH,
    assert_equal,
    assert_moved,
    compiled,
    dense_model,
    go_on,
    linear_variables,
    state,
    weights,
)

GATES = "select", "conditional", "auto"
STOP = LENGTH + 2  # two micro-batches into the second window


@on_adam_and_amsgrad
@quick_first("first", GATES)
def test_one_gate_continues_from_the_state_of_the_other(case, first):
    arguments = {**case.arguments, "accum_iters": LENGTH, "clipnorm": 0.3, **hosts.our_decay(0.25)}
    model, other = (
        compiled(dense_model(), hosts.ours(case.name, **arguments, gate=gate))
        for gate in (first, GATES[GATES.index(first) - 1])
    )
    start = weights(go_on(model, 0, STOP))
    other.set_weights(model.get_weights())
    hosts.build(other)
    other.optimizer.set_state(model.optimizer.get_state())
    go_on(other, STOP)
    go_on(model, STOP)
    assert_moved(start, weights(model), by=0.005)
    assert_equal(state(other), state(model))


def ones():
    """Variables of PyTorch or JAX, and gradients."""
    variables = linear_variables()
    return variables, [np.ones(np.shape(hosts.array(v)), hosts.FLOATX) for v in variables]


@pytest.mark.skipif(not hosts.IS_TORCH, reason="only PyTorch has torch.compile")
def test_torch_compile_refuses_a_conditional(monkeypatch):
    """If every micro-batch updates, there is no conditional to refuse."""
    variables, gradients = ones()
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, gate="conditional")
    with pytest.raises(ValueError, match="gate='conditional' can't be used in torch.compile"):
        hosts.apply(optimizer, gradients, variables)
    always = hosts.ours("Adam", decay=0.25, gate="conditional")
    hosts.apply(always, gradients, variables)
    assert always.completed_updates == 1


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="only JAX has jaxprs to search for conditionals")
@pytest.mark.parametrize("count, more", [(0, {}), (1, {"gate": "conditional"})])
@pytest.mark.parametrize("always", [{}, {"accum_iters": 1, "decay": 0.25}], ids=str)
@on_adam_and_amsgrad
def test_conditionals_in_the_program_of_jax(case, count, more, always):
    import jax

    optimizer = hosts.ours(case.name, **case.arguments, **{"accum_iters": LENGTH, **more, **always})
    variables = linear_variables()
    optimizer.build(variables)
    values = [v.value for v in variables]
    program = jax.make_jaxpr(optimizer.stateless_apply)(
        [v.value for v in optimizer.variables], values, values
    )
    assert "= cond[" not in str(program)
    assert str(program).count("= while[") == (0 if always else count)


