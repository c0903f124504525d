"""Windows of other lengths as the number of updates grows: `accum_iters` is a function.

The random trainings of test_fuzz.py have a schedule among their values of `accum_iters`.
"""

import copy
import json
import pickle

import hosts
import numpy as np
import pytest
from cases import CASES, LATE, keras2_has_no, on_adam_and_amsgrad, quick_first, thorough
from hosts import keras
from steps import assert_windows_equal_big_batches, gradients, made, stepper
from training import assert_equal, compiled, data, dense_model, state, weights

from keras_accum import AccumulationSchedule

LENGTHS = [1, 3, 3, 2, 2]  # of the windows, by the number of completed updates
SCHEDULE = AccumulationSchedule({0: 1, 1: 3, 3: 2})


def by_operators(updates):
    """The same lengths by operators, which every Keras has."""
    return 1 + 2 * at_most_1(updates) - at_most_1(updates // 3)


def at_most_1(number):
    return (number + 1 - abs(number - 1)) // 2


def adam(accum_iters=SCHEDULE, **more):
    return hosts.ours("Adam", **CASES["adam"].arguments, accum_iters=accum_iters, **more)


@on_adam_and_amsgrad
@quick_first("accum_iters", [SCHEDULE, by_operators])
@pytest.mark.usefixtures("every_gate")
def test_each_window_has_the_length_of_its_update(case, accum_iters):
    """In a step that is traced once, so the function gets a tensor."""
    assert [accum_iters(updates) for updates in range(5)] == LENGTHS
    ours, mine = made(hosts.ours(case.name, **case.arguments, accum_iters=accum_iters))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    assert_windows_equal_big_batches(ours, stock, mine, theirs, gradients(LENGTHS))


# -- in a training ---------------------------------------------------------------------------------

X, Y = (np.concatenate([array, array])[: 2 * sum(LENGTHS)] for array in data())
ENDS = np.cumsum([0, *LENGTHS]) * 2  # the samples at which windows end


def fit(model, *callbacks):
    model.fit(X, Y, batch_size=2, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def big_batches():
    model = compiled(dense_model(), hosts.stock("Adam", **CASES["adam"].arguments))
    for start, stop in zip(ENDS, ENDS[1:]):
        model.train_on_batch(X[start:stop], Y[start:stop])
    return model


@keras2_has_no("PythonGate")
def test_python_gate():
    model = fit(compiled(dense_model(), adam()), hosts.accum.PythonGate())
    assert model.optimizer.completed_updates == len(LENGTHS)
    assert_equal(state(model), state(big_batches()))


@keras2_has_no("AccumulationMonitor")
def test_the_monitor_logs_the_batch_of_each_window():
    found = []

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append(logs["effective_batch"])

    monitor = hosts.accum.AccumulationMonitor(batch_size=2, noise_scale=True)
    fit(compiled(dense_model(), adam()), monitor, Log())
    assert found == [2 * length for length in LENGTHS for _ in range(length)]


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW or hosts.IS_KERAS2, reason="about tf.distribute")
@pytest.mark.parametrize("late, has_python_gate", [({}, False), (LATE, True)])
def test_replicas(late, has_python_gate, strategy):
    with strategy.scope():
        model = compiled(dense_model(), adam(**late))
    fit(model, *[hosts.accum.PythonGate()] * has_python_gate)
    assert model.optimizer.completed_updates == len(LENGTHS)
    assert_equal(weights(model), weights(big_batches()))


@thorough
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="tf_keras counts a skip among the updates")
def test_a_micro_batch_that_a_loss_scale_optimizer_skips():
    model = compiled(dense_model(), hosts.loss_scaled(adam(), 2.0**10))
    for i in range(sum(LENGTHS)):
        for y in (np.full_like(Y[:2], np.inf), Y[2 * i : 2 * i + 2]):
            model.train_on_batch(X[2 * i : 2 * i + 2], y)
    assert model.optimizer.inner_optimizer.completed_updates == len(LENGTHS)
    assert_equal(weights(model), weights(big_batches()), rtol=1e-5, atol=1e-6)


# -- states, copies and configs --------------------------------------------------------------------


def test_a_state_of_the_stock_optimizer_goes_on_with_its_window():
    """After one update, the next window has three micro-batches."""
    optimizer = adam()
    optimizer.set_state({"completed_updates": 1})
    assert optimizer.accum_iters == LENGTHS[1]
    other = hosts.ours("Adam", **CASES["adam"].arguments)
    compiled(dense_model(), other).train_on_batch(X[:2], Y[:2])
    ours = type(optimizer).from_optimizer(other, accum_iters=SCHEDULE)
    assert (ours.accum_iters, ours.completed_updates) == (LENGTHS[1], 1)


@pytest.mark.parametrize("accum_iters", [SCHEDULE, by_operators], ids=["schedule", "function"])
def test_copies_and_conversions_keep_it(accum_iters):
    optimizer = adam(accum_iters)
    for other in (
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
        type(optimizer).from_optimizer(optimizer, learning_rate=0.5),
    ):
        assert other.accum_iters == 1
        other.set_state({"completed_updates": 1})
        assert other.accum_iters == LENGTHS[1]
    assert type(optimizer).from_optimizer(optimizer, accum_iters=4).accum_iters == 4
    assert "accum_iters" not in optimizer.to_stock().get_config()


def test_a_config_has_a_schedule_and_no_function():
    optimizer = adam()
    config = json.loads(json.dumps(optimizer.get_config()))
    assert config["accum_iters"]["config"] == json.loads(json.dumps(SCHEDULE.get_config()))
    assert type(optimizer).from_config(config).get_config() == optimizer.get_config()
    with pytest.raises(ValueError, match="can't hold a function.*Schedule.*accum_iters=<"):
        adam(by_operators).get_config()


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 2.5, None])
def test_a_function_must_return_a_length(value):
    """At construction, and whenever Python sees the value."""
    said = "must return an integer >= 1.*Received: "
    with pytest.raises((ValueError, TypeError), match=said):
        adam(lambda updates: value)
    optimizer = adam(lambda updates: 2 if updates < 1 else value)
    with pytest.raises((ValueError, TypeError), match=said):
        optimizer.set_state({"completed_updates": 1})
        print(optimizer.accum_iters)


def test_a_traced_step_takes_a_number_below_1_as_1():
    ours, mine = made(adam(lambda updates: 2 - 2 * updates))
    step, window = stepper(ours, mine), gradients()[0]
    step(window[0])
    step(window[1])
    if hosts.IS_TORCH:
        with pytest.raises(ValueError, match="must return an integer >= 1.*Received: 0"):
            step(window[2])
        return
    step(window[2])
    assert (ours.completed_updates, ours.window_position) == (2, 0)
    with pytest.raises(ValueError, match="Received: -2"):
        print(ours.accum_iters)
    assert int(ours.get_state()["window_length"]) == 1


@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch is eager")
def test_a_function_that_cannot_be_traced():
    for function, said in (
        (lambda updates: 2 if updates < 5 else 3, "can't be part of a train step"),
        (lambda updates: 2 if isinstance(updates, int) else updates / 2, "must return an integer"),
    ):
        with pytest.raises(TypeError, match=said):
            stepper(*made(adam(function)))(gradients()[0][0])


def test_accum_iters_of_a_schedule_cannot_be_set():
    optimizer = adam()
    with pytest.raises(AttributeError, match=r"can't be set.*from_optimizer.*accum_iters=3"):
        optimizer.accum_iters = 3
    for value in (SCHEDULE, by_operators):
        with pytest.raises(TypeError, match="`accum_iters` must be an integer >= 1"):
            adam(2).accum_iters = value


@keras2_has_no("PythonGate")
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch needs no PythonGate")
def test_python_gate_refuses_a_function():
    with pytest.raises(ValueError, match="PythonGate can't be used with accum_iters=<function"):
        fit(compiled(dense_model(), adam(by_operators)), hosts.accum.PythonGate())
