"""What a gate makes of a program of JAX, and that torch.compile refuses a conditional."""

import hosts
import numpy as np
import pytest
from cases import on_adam_and_amsgrad
from training import LENGTH, linear_variables


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
