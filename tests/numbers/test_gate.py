"""Both gates give equal numbers and equal states. torch.compile refuses a conditional."""

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

GATES = "select", "conditional"
STOP = LENGTH + 2  # two micro-batches into the second window


def trained(case, gate, steps):
    model = compiled(dense_model(), hosts.ours(case.name, **case.arguments, **gate))
    return go_on(model, 0, steps)


@on_adam_and_amsgrad
@quick_first("first", GATES)
def test_one_gate_continues_from_the_state_of_the_other(case, first):
    second = GATES[1 - GATES.index(first)]
    arguments = {"accum_iters": LENGTH, "clipnorm": 0.3, **hosts.our_decay(0.25)}
    model = trained(case, {**arguments, "gate": first}, STOP)
    start, kept, values = weights(model), model.optimizer.get_state(), model.get_weights()
    arguments["gate"] = second
    other = compiled(dense_model(), hosts.ours(case.name, **case.arguments, **arguments))
    other.set_weights(values)
    hosts.build(other)
    other.optimizer.set_state(kept)
    go_on(other, STOP)
    go_on(model, STOP)
    assert_moved(start, weights(model), by=0.005)
    assert_equal(state(other), state(model))


@pytest.mark.skipif(not hosts.IS_TORCH, reason="only PyTorch has torch.compile")
def test_torch_compile_refuses_a_conditional(monkeypatch):
    """If every micro-batch updates, there is no conditional to refuse."""
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, gate="conditional")
    variables = linear_variables()
    gradients = [np.ones(np.shape(hosts.array(v)), hosts.FLOATX) for v in variables]
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    with pytest.raises(ValueError, match="gate='conditional' can't be used in torch.compile"):
        hosts.apply(optimizer, gradients, variables)
    always = hosts.ours("Adam", decay=0.25, gate="conditional")
    hosts.apply(always, gradients, variables)
    assert always.completed_updates == 1


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="only JAX has jaxprs to search for conditionals")
@pytest.mark.parametrize(
    ("count", "more"),
    [
        (0, {"accum_iters": LENGTH}),
        (1, {"accum_iters": LENGTH, "gate": "conditional"}),
        (0, {"accum_iters": 1, "gate": "conditional", "decay": 0.25}),
    ],
)
@on_adam_and_amsgrad
def test_conditionals_in_the_program_of_jax(case, count, more):
    import jax

    optimizer = hosts.ours(case.name, **case.arguments, **more)
    variables = linear_variables()
    optimizer.build(variables)
    values = [v.value for v in variables]
    program = jax.make_jaxpr(optimizer.stateless_apply)(
        [v.value for v in optimizer.variables], values, values
    )
    assert str(program).count("= cond[") == count


@pytest.mark.skipif(
    not hosts.IS_TORCH, reason="only eager PyTorch decides in Python whether to update"
)
@pytest.mark.parametrize("more", [{}, {"decay": 0.25}], ids=str)
def test_pytorch_with_a_conditional_makes_no_update_inside_a_window(more, monkeypatch):
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, gate="conditional", **more)
    updates = []
    port = optimizer._accumulation.port
    update = port.update

    def counted(*arguments, **more):
        updates.append(1)
        update(*arguments, **more)

    monkeypatch.setattr(port, "update", counted)
    variables = linear_variables()
    gradients = [np.ones(np.shape(hosts.array(v)), hosts.FLOATX) for v in variables]
    for _ in range(2 * LENGTH):
        hosts.apply(optimizer, gradients, variables)
    assert len(updates) == 2
