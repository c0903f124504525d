"""`skip_norm` drops micro-batches by the norm of their gradient."""

import hosts
import numpy as np
import pytest
import steps
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first
from training import assert_equal, compiled, data, dense_model

LENGTH = 3


MICRO_BATCHES = sum(steps.gradients([LENGTH, LENGTH]), [])


def norm_of(gradients):
    return np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients))


LIMIT = 1.01 * max(map(norm_of, MICRO_BATCHES))
LARGE = [gradient * 1.5 for gradient in MICRO_BATCHES[0]]
BAD = [np.full_like(gradient, np.nan) for gradient in LARGE]


def made(optimizer):
    optimizer, variables = steps.made(optimizer)
    return optimizer, variables, steps.stepper(optimizer, variables)


@on_adam_and_amsgrad
@quick_first("skip_norm", {"number": LIMIT, "function": lambda norm: norm > LIMIT})
@pytest.mark.usefixtures("every_gate")
def test_a_skipped_micro_batch_leaves_no_trace(case, skip_norm):
    arguments = {**case.arguments, "accum_iters": LENGTH, "skip_norm": skip_norm}
    ours, mine, step = made(hosts.ours(case.name, **arguments))
    stock, theirs, big_step = made(hosts.stock(case.name, **case.arguments))
    assert norm_of(LARGE) > LIMIT > norm_of(MICRO_BATCHES[0])
    for i, gradients in enumerate(MICRO_BATCHES):
        before = steps.weights_and_state(ours, mine), ours.window_position
        step(LARGE)
        assert before[1] == ours.window_position == i % LENGTH
        assert_equal(steps.weights_and_state(ours, mine), before[0], rtol=0, atol=0)
        step(gradients)
    for window in (MICRO_BATCHES[:LENGTH], MICRO_BATCHES[LENGTH:]):
        big_step([np.mean(gradients, axis=0) for gradients in zip(*window)])
    assert ours.completed_updates == 2
    assert_equal(steps.weights_and_state(ours, mine), steps.weights_and_state(stock, theirs))


def test_a_number_drops_a_norm_that_is_not_a_number():
    ours, mine, step = made(hosts.ours("Adam", accum_iters=2, skip_norm=1e6))
    step(BAD)
    assert ours.window_position == 0
    step(LARGE)
    assert ours.window_position == 1


def test_both_rules_together():
    always = lambda norm: norm < 0  # noqa: E731
    arguments = {"accum_iters": 9, "skip_nonfinite": True}
    ours, mine, step = made(hosts.ours("Adam", skip_norm=always, **arguments))
    for gradients in (BAD, LARGE, BAD):
        step(gradients)
    assert ours.window_position == 1


@keras2_has_no("weights of micro-batches")
@pytest.mark.skipif(not hosts.IS_TORCH, reason="weighs eagerly")
def test_the_norm_of_a_weighted_micro_batch_is_that_of_its_average():
    ours, mine, step = made(
        hosts.ours("Adam", accum_iters=9, skip_norm=LIMIT, reduction="weighted")
    )
    for weight, gradients, position in ((100.0, MICRO_BATCHES[0], 1), (0.01, LARGE, 1)):
        ours.weigh(weight)
        step(gradients)
        assert ours.window_position == position


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="an argument of Keras 3")
def test_the_norm_is_that_before_loss_scaling():
    ours, mine, step = made(
        hosts.ours("Adam", accum_iters=9, skip_norm=LIMIT, loss_scale_factor=64.0)
    )
    step([64 * gradient for gradient in MICRO_BATCHES[0]])
    assert ours.window_position == 1
    step([64 * gradient for gradient in LARGE])
    assert ours.window_position == 1


@keras2_has_no("AccumulationMonitor")
@pytest.mark.parametrize("accum_iters", [1, 2])
def test_the_monitor_counts(accum_iters):
    x, y = data()
    y = y.copy()
    y[4:6] *= 1e4
    optimizer = hosts.ours("SGD", learning_rate=1e-3, accum_iters=accum_iters, skip_norm=1e3)
    model = compiled(dense_model(), optimizer)
    monitor = hosts.accum.AccumulationMonitor()
    for _ in range(2):
        history = model.fit(
            x[:8], y[:8], batch_size=2, shuffle=False, verbose=0, epochs=2, callbacks=[monitor]
        ).history
        assert history["skipped_micro_batches"] == [1, 2]
    assert optimizer.completed_updates == 12 // accum_iters


@keras2_has_no("PythonGate")
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch needs no PythonGate")
def test_python_gate_refuses_it():
    x, y = data()
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=2, skip_norm=1.0))
    with pytest.raises(ValueError, match="PythonGate can't be used with skip_norm"):
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[hosts.accum.PythonGate()])


def test_a_config_has_a_number_and_no_function():
    optimizer = hosts.ours("Adam", **CASES["adam"].arguments, skip_norm=2)
    config = optimizer.get_config()
    assert config["skip_norm"] == 2.0
    assert type(optimizer).from_config(config).skip_norm == 2.0
    optimizer = hosts.ours("Adam", skip_norm=abs)
    with pytest.raises(ValueError, match="can't hold a function.*skip_norm=<built-in"):
        optimizer.get_config()
    assert type(optimizer).from_optimizer(optimizer, accum_iters=2).skip_norm is abs
