"""The program of a micro-batch on JAX: where the default gate is a branch, and where it isn't."""

from types import SimpleNamespace

import hosts
import numpy as np
import pytest
import steps
from cases import ADAM, on_adam_and_amsgrad, quick_first
from hosts import keras
from steps import branches_of_program, copies_of, made, shrink
from training import LENGTH, Shrink, assert_equal

if hosts.BACKEND != "jax":
    pytest.skip("about JAX's programs", allow_module_level=True)

import jax

SCHEDULE = keras.optimizers.schedules.ExponentialDecay(2**-5, 2, 0.7)
MANY = {"clipnorm": 0.3, "skip_nonfinite": True, "weight_decay": 0.2, "learning_rate": SCHEDULE}
GIVEN = {"plain": {}, "many": {**MANY, "use_ema": True, "ema_overwrite_frequency": 2}}


class OfUser(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, update):
        return 2**-5


class Own:
    def update_step(self, *arguments):
        super().update_step(*arguments)


class Yours(Own, keras.optimizers.Adam):
    pass


class Mine(Own, hosts.accum.AdamAccumulate):
    pass


# What an update calls of a user's.
OF_USERS = {
    "class": lambda: hosts.accum.accumulating(Yours)(accum_iters=LENGTH),
    "subclass": lambda: Mine(accum_iters=LENGTH),
    "schedule": lambda: ours(learning_rate=OfUser()),
    "rate": lambda: ours(learning_rate=lambda: 2**-5),
    "transforms": lambda: ours(window_transforms=[lambda gradients, variables: gradients]),
}


def ours(name="Adam", **arguments):
    return hosts.ours(name, **{"accum_iters": LENGTH, **arguments})


def count(optimizer, constraint=shrink):
    """Return the numbers of conditionals and loops in the program of a micro-batch."""
    w = hosts.variable(np.ones((3, 2)), "w", constraint=constraint())
    hosts.build_on(optimizer, [w])
    return branches_of_program(optimizer, [w])


def see(monkeypatch, *platforms):
    """Let JAX see these devices. Programs are traced for them, not run."""
    devices = [SimpleNamespace(platform=platform) for platform in platforms]
    monkeypatch.setattr(jax, "devices", lambda: devices)


def test_the_search_finds_branches():
    variable = hosts.variable([1.0], "w")

    def branch(state, weights, gradients):
        new = jax.lax.cond(gradients[0][0] > 0, lambda: weights[0], lambda: -weights[0])
        return jax.lax.fori_loop(0, state[0], lambda _, w: 2 * w, new)

    found = SimpleNamespace(variables=[hosts.variable(1, "n", "int32")], stateless_apply=branch)
    assert branches_of_program(found, [variable]) == (1, 1)


@on_adam_and_amsgrad
@quick_first("gate", ["auto", "conditional"])
@pytest.mark.parametrize("name", GIVEN)
def test_one_loop_where_only_cpus_are_visible(case, gate, name):
    assert count(ours(case.name, **{**case.arguments, **GIVEN[name], "gate": gate})) == (0, 1)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("name", GIVEN)
def test_no_branch_with_select(name, platform, monkeypatch):
    see(monkeypatch, platform)
    assert count(ours(gate="select", **GIVEN[name])) == (0, 0)


@pytest.mark.parametrize("platforms", [["gpu"], ["tpu"], ["cpu", "gpu"]], ids=str)
@pytest.mark.parametrize("name", GIVEN)
def test_no_branch_where_a_gpu_or_tpu_is_visible(name, platforms, monkeypatch):
    see(monkeypatch, *platforms)
    assert count(ours(**GIVEN[name])) == (0, 0)


@pytest.mark.parametrize("gate, loops", [("auto", 1), ("conditional", 1), ("select", 0)])
def test_a_loop_around_products_of_matrices(gate, loops, monkeypatch):
    """Muon's would be computed in each micro-batch."""
    see(monkeypatch, "gpu")
    assert count(ours("Muon", gate=gate)) == (0, loops)


def test_no_branch_across_devices():
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        assert count(ours()) == (0, 0)
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.parametrize("name", OF_USERS)
def test_no_branch_around_code_of_a_user(name):
    assert count(OF_USERS[name]()) == (0, 0)


def test_no_branch_around_a_constraint_of_a_user():
    found = [count(ours(), make) for make in (lambda: None, shrink, Shrink, lambda: abs)]
    assert found == [(0, 1), (0, 1), (0, 0), (0, 0)]


def test_a_rate_that_is_set_later():
    optimizer = ours()
    optimizer.learning_rate = OfUser()
    assert count(optimizer) == (0, 0)


def test_an_eager_step_compiles_no_loop(monkeypatch):
    """It would do so in each micro-batch."""
    monkeypatch.setattr(jax.lax, "fori_loop", None)
    steps.take_steps(ours(), steps.variables())


def test_the_loop_copies_nothing():
    """It writes in place."""
    w = hosts.variable(np.ones((256, 256)), "w")
    optimizer = ours()
    hosts.build_on(optimizer, [w])
    state = [v.value for v in optimizer.variables]

    def step(state, weights, gradients):
        return optimizer.stateless_apply(state, gradients, weights)[::-1]

    given = state, [w.value], [w.value]
    program = jax.jit(step, donate_argnums=(0, 1)).lower(*given).compile()
    assert program.memory_analysis().temp_size_in_bytes < w.value.nbytes / 2


@quick_first("name", ["many", "plain"])
def test_all_gates_have_the_same_state(name):
    """Also if a training begins with one gate and goes on with the other."""
    found = []
    for gates in (["auto", "auto"], ["select", "select"], ["auto", "select"]):
        optimizer, ws = made(ours(**{**ADAM.arguments, **GIVEN[name], "gate": gates[0]}))
        step = steps.stepper(optimizer, ws)
        grads = sum(steps.gradients(), [])
        for each in grads[: LENGTH + 1]:
            step(each)
        other = type(optimizer).from_optimizer(optimizer, gate=gates[1])
        ws = copies_of(ws)
        hosts.build_on(other, ws)
        step = steps.stepper(other, ws)
        for each in grads[LENGTH + 1 :]:
            step(each)
        found.append(steps.weights_and_state(other, ws))
    for each in found[1:]:
        assert_equal(each, found[0])
