"""`skip_nonfinite` and `skip_norm` drop micro-batches by their gradient and by its norm."""

import hosts
import numpy as np
import pytest
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_except, quick_first, thorough
from steps import assert_windows_equal_big_batches, gradients, made, stepper
from training import BIG, LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, state

pytestmark = quick_except("tensorflow")

WINDOWS = gradients([3, 3])
EXECUTION = {"steps_per_execution": 3}


def norm_of(gradients):
    return np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients))


LIMIT = 1.01 * max(norm_of(micro_batch) for window in WINDOWS for micro_batch in window)
SMALL = WINDOWS[0][0]
LARGE = [gradient * 1.5 for gradient in SMALL]
BAD, INFINITE = ([np.full_like(g, value) for g in LARGE] for value in (np.nan, np.inf))

# The length of windows, an argument, and micro-batches that it drops before each of a window.
SKIPPED = {
    "nonfinite": (3, {"skip_nonfinite": True}, [BAD, INFINITE]),
    "nonfinite, no window": (1, {"skip_nonfinite": True}, [BAD, INFINITE]),
    "norm": (3, {"skip_norm": LIMIT}, [LARGE]),
    "function": (3, {"skip_norm": lambda norm: norm > LIMIT}, [LARGE]),
}


@on_adam_and_amsgrad
@quick_first("length, argument, dropped", SKIPPED)
@pytest.mark.usefixtures("every_gate")
def test_a_skipped_micro_batch_leaves_no_trace(case, length, argument, dropped):
    """It isn't added or counted, whatever its number is, and no window closes early."""
    ours, mine = made(hosts.ours(case.name, **case.arguments, accum_iters=length, **argument))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    step, windows = stepper(ours, mine), gradients([length, length])
    assert norm_of(LARGE) > LIMIT > norm_of(SMALL)

    def after_dropped_ones(grads, is_last):
        for bad in dropped:
            step(bad)
        step(grads)

    assert_windows_equal_big_batches(ours, stock, mine, theirs, windows, after_dropped_ones)
    step(dropped[0])
    assert (ours.completed_updates, ours.window_position) == (2, 0)


# Arguments, and micro-batches with their weights and the positions after them.
DROPPED = {
    "no number": ({"skip_norm": 1e6}, [(BAD, None, 0), (LARGE, None, 1)]),
    "both rules": (
        {"skip_norm": lambda norm: norm < 0, "skip_nonfinite": True},
        [(BAD, None, 0), (LARGE, None, 1), (BAD, None, 1)],
    ),
}
if not hosts.IS_KERAS2:
    DROPPED["weighted"] = (
        {"skip_norm": LIMIT, "reduction": "weighted"},
        [(SMALL, 100.0, 1), (LARGE, 0.01, 1), (LARGE, 0.0, 2)],
    )
if hosts.IS_KERAS3:
    DROPPED["loss scale"] = (
        {"skip_norm": LIMIT, "loss_scale_factor": 64.0},
        [([64 * g for g in SMALL], None, 1), ([64 * g for g in LARGE], None, 1)],
    )


@pytest.mark.parametrize("arguments, micro_batches", DROPPED.values(), ids=DROPPED)
def test_what_is_dropped(arguments, micro_batches):
    """The norm is that before loss scaling, and that of a weighted micro-batch's average."""
    ours, mine = made(hosts.ours("Adam", accum_iters=9, **arguments))
    step = stepper(ours, mine, ours.weigh if "reduction" in arguments else None)
    for grads, weight, position in micro_batches:
        step(grads, weight)
        assert ours.window_position == position


@keras2_has_no("AccumulationMonitor")
@pytest.mark.parametrize("accum_iters", [1, 2])
def test_the_monitor_counts(accum_iters):
    x, y = (array[:8] for array in data())
    y[4:6] *= 1e4
    arguments = {"accum_iters": accum_iters, "reduction": "mean", "skip_norm": 1e3}
    optimizer = hosts.ours("SGD", learning_rate=1e-3, **arguments)
    model, callbacks = compiled(dense_model(), optimizer), [hosts.accum.AccumulationMonitor()]
    settings = {"batch_size": 2, "shuffle": False, "verbose": 0, "epochs": 2}
    for _ in range(2):
        history = model.fit(x, y, callbacks=callbacks, **settings).history
        assert history["skipped_micro_batches"] == [1, 2]
    assert history["completed_updates"] == [9 // accum_iters, 12 // accum_iters]
    assert optimizer.completed_updates == 12 // accum_iters


def test_a_config_has_a_number_and_no_function():
    optimizer = hosts.ours("Adam", **CASES["adam"].arguments, skip_norm=2)
    config = optimizer.get_config()
    assert config["skip_norm"] == type(optimizer).from_config(config).skip_norm == 2.0
    optimizer = hosts.ours("Adam", skip_norm=abs)
    with pytest.raises(ValueError, match="can't hold a function.*skip_norm=<built-in"):
        optimizer.get_config()
    assert type(optimizer).from_optimizer(optimizer, accum_iters=2).skip_norm is abs


@keras2_has_no("complex weights")
@pytest.mark.parametrize("arguments", [{"skip_nonfinite": True}, {"skip_norm": 10.0}])
def test_complex_gradients(arguments):
    """Either part of a complex number may be bad, and both are in the norm."""
    ours = hosts.ours("SGD", learning_rate=1.0, accum_iters=2, **arguments)
    w = hosts.variable(np.array([1 + 2j, 3 - 1j]), "w", dtype="complex64")
    hosts.build_on(ours, [w])
    large = [20j, 1] if "skip_norm" in arguments else [1, complex(1, np.inf)]
    micro_batches = [([1 + 1j, 2], 1), ([complex(np.nan, 1), 1], 1), (large, 1), ([1, 1j], 0)]
    for grads, position in micro_batches:
        hosts.apply(ours, [np.array(grads, "complex64")], [w])
        assert ours.window_position == position
    np.testing.assert_allclose(hosts.array(w), [1.5j, 2 - 1.5j])


@thorough
@keras2_has_no("steps_per_execution")
@pytest.mark.skipif(hosts.IS_TORCH, reason="Keras 3.15 refuses steps_per_execution there")
def test_dropped_in_an_execution_of_several_steps():
    """The first of three steps is dropped, and the window ends in another execution."""
    (x, y), found = data(), []
    y[3 * MICRO : 4 * MICRO] = np.nan
    good = np.isfinite(y[:, 0])
    for optimizer, arrays, size, more in (
        (hosts.ours("Adam", accum_iters=LENGTH, skip_nonfinite=True), (x, y), MICRO, EXECUTION),
        (hosts.stock("Adam"), (x[good], y[good]), BIG, {}),
    ):
        model = compiled(dense_model(), optimizer, **more)
        fit(model, size, arrays)
        found.append(state(model))
    assert_equal(*found)
