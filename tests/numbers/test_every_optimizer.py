"""Every optimizer with all features at once, which tests `accumulating` on the stock classes."""

from functools import partial

import hosts
import numpy as np
import pytest
from cases import CASES, NO_DECAY, on_special_states, once_by_torch, over, thorough
from formats import CLASSES
from hosts import keras
from steps import (
    assert_branches,
    assert_windows_equal_big_batches,
    gradients,
    prepared,
    stepper,
    variables,
)
from training import LENGTH, UPDATES, assert_equal, compiled, dense_model, go_on

SCALED = list(zip((1, 1 / 16, 1), gradients()))
on_every_optimizer = over(CASES, quick=["adam", "nadam", "adafactor"])


def everything(case):
    """Arguments for everything that the host's optimizer can do."""
    rate = case.arguments["learning_rate"]
    if hosts.IS_KERAS2:
        return {**case.arguments, "decay": 0.25, "clipnorm": 0.5}
    schedule = hosts.EachUpdate([rate / (1 + update) for update in range(UPDATES)])
    if hosts.BACKEND == "jax":  # where the default gate depends on whose schedule it is
        schedule = keras.optimizers.schedules.InverseTimeDecay(rate, 1, 1.0)
    more = {"learning_rate": rate if case.name in NO_DECAY else schedule, "global_clipnorm": 0.75}
    if hosts.HAS_EMA:
        more.update(weight_decay=0.25, use_ema=True, ema_momentum=0.25, ema_overwrite_frequency=2)
    return {**case.arguments, **more}


def assert_everything_at_once(case, step=None, **arguments):
    """Nothing moves inside a window, to the bit; its end has the big batch's weights and state."""
    mine, theirs = variables(), variables()
    more = everything(case)
    ours = prepared(hosts.ours(case.name, accum_iters=LENGTH, **arguments, **more), mine)
    stock = prepared(hosts.stock(case.name, **more), theirs)
    # The average of the second window isn't clipped.
    windows = [[[g * scale for g in grads] for grads in window] for scale, window in SCALED]
    step = step and step(ours, mine)
    assert_windows_equal_big_batches(ours, stock, mine, theirs, windows, step)
    if step is None:
        assert_branches(ours, mine)


@on_every_optimizer
def test_everything_at_once(case):
    assert_everything_at_once(case)


XLA = partial(stepper, jit_compile=True)
# A step and a gate. Where only CPUs are visible, `auto` is a branch, and a loop under XLA.
OTHER_GATES = {"selection": (None, "select")}
if hosts.IS_KERAS2:
    OTHER_GATES = {"branch": (None, "conditional")}
elif hosts.IS_TENSORFLOW:
    OTHER_GATES["loop"] = XLA, "auto"


@on_every_optimizer
@pytest.mark.skipif("loop" not in OTHER_GATES, reason="other backends have no function by XLA")
def test_everything_at_once_by_xla(case):
    """What a GPU runs: a selection."""
    assert_everything_at_once(case, XLA, gate="select")


@thorough
@on_special_states
@pytest.mark.parametrize("step, gate", OTHER_GATES.values(), ids=OTHER_GATES)
def test_everything_at_once_by_another_gate(case, step, gate):
    assert_everything_at_once(case, step, gate=gate)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's files are tested in test_saving.py")
@on_every_optimizer
@thorough
@once_by_torch
def test_saved_in_a_window(case, tmp_path):
    """The loaded model continues as if it had never stopped."""
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    model = compiled(dense_model(), optimizer, hosts.mean_squared_error(), run_eagerly=True)
    stop, end, path = LENGTH + 2, 3 * LENGTH, tmp_path / "model.keras"
    go_on(model, 0, stop).save(path)
    loaded = keras.models.load_model(path, custom_objects=CLASSES)
    assert loaded.optimizer.window_position == 2
    for each in (model, loaded):
        go_on(each, stop, end)
    assert_equal(dict(enumerate(loaded.get_weights())), dict(enumerate(model.get_weights())))
    states = [each.optimizer.get_state() for each in (loaded, model)]
    for state in states:
        state.pop("weight_names", None)  # Keras names the loaded model's weights anew
    assert_equal(*states)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's lists are tested in test_old_files.py")
@pytest.mark.parametrize("built", [False, True])
@on_special_states
def test_a_list_of_the_stock_optimizer(case, built):
    """The slots of Adafactor and Muon depend on the variables, and a list has no names."""
    theirs, stock = variables(), hosts.stock(case.name, **case.arguments)
    hosts.apply(stock, gradients()[0][0], theirs)
    arrays = [hosts.array(v) for v in stock.variables]

    def optimizer(arrays):
        found, mine = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments), variables()
        if built:
            found.build(mine)
        found.set_weights(arrays)
        found.build(mine)
        return found

    ours = optimizer(arrays)
    assert ours.completed_updates == 1
    for found, expected in zip(ours.variables, arrays):
        np.testing.assert_array_equal(hosts.array(found), expected)
    with pytest.raises(hosts.accum.StateError, match="is not a state of|doesn.t fit"):
        optimizer(arrays[:-1])
