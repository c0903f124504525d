"""Windows of other lengths as the number of updates grows: `accum_iters` is a function."""

import copy
import json
import pickle

import hosts
import numpy as np
import pytest
from cases import CASES, LATE, keras2_has_no, on_adam_and_amsgrad, quick_first, thorough
from formats import CLASSES
from hosts import keras
from steps import assert_windows_equal_big_batches, gradients, made, stepper
from training import assert_equal, assert_moved, compiled, data, dense_model, state, weights

from keras_accum import AccumulationSchedule

LENGTHS = [1, 3, 3, 2, 2]  # of the windows, by the number of completed updates
SCHEDULE = AccumulationSchedule({0: 1, 1: 3, 3: 2})


def by_operators(updates):
    """The same lengths by operators, which every Keras has."""
    return 1 + 2 * at_most_1(updates) - at_most_1(updates // 3)


def at_most_1(number):
    return (number + 1 - abs(number - 1)) // 2


def test_the_function_of_this_test_is_the_schedule():
    assert [SCHEDULE(i) for i in range(5)] == [by_operators(i) for i in range(5)] == LENGTHS


@on_adam_and_amsgrad
@quick_first("accum_iters", [SCHEDULE, by_operators])
@pytest.mark.usefixtures("every_gate")
def test_each_window_has_the_length_of_its_update(case, accum_iters):
    ours, mine = made(hosts.ours(case.name, **case.arguments, accum_iters=accum_iters))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    assert_windows_equal_big_batches(ours, stock, mine, theirs, gradients(LENGTHS))


def test_a_traced_step_calls_the_function_once():
    calls = []

    def noted(updates):
        calls.append(updates)
        return by_operators(updates)

    ours, mine = made(adam(noted))
    step, before = stepper(ours, mine), len(calls)
    for window in gradients(LENGTHS):
        for grads in window:
            step(grads)
    most = sum(LENGTHS) if hosts.IS_TORCH else 1  # PyTorch is eager
    assert len(calls) - before <= most
    assert ours.completed_updates == len(LENGTHS)


# -- in a training ---------------------------------------------------------------------------------

X, Y = data()
X, Y = (np.concatenate([array, array])[: 2 * sum(LENGTHS)] for array in (X, Y))  # 5 windows
ENDS = np.cumsum([0, *LENGTHS]) * 2  # the samples at which windows end


def adam(accum_iters=SCHEDULE, **more):
    return hosts.ours("Adam", **CASES["adam"].arguments, accum_iters=accum_iters, **more)


def trained(model, first=0, last=None):
    for i in range(sum(LENGTHS))[first:last]:
        model.train_on_batch(X[2 * i : 2 * i + 2], Y[2 * i : 2 * i + 2])
    return model


def big_batches():
    model = compiled(dense_model(), hosts.stock("Adam", **CASES["adam"].arguments))
    for start, stop in zip(ENDS, ENDS[1:]):
        model.train_on_batch(X[start:stop], Y[start:stop])
    return model


def fit(model, **arguments):
    return model.fit(X, Y, batch_size=2, shuffle=False, verbose=0, **arguments)


def test_a_training_goes_on_from_a_file_to_the_bit(tmp_path, stop=2):
    eager = {} if hosts.IS_KERAS2 else {"run_eagerly": True}
    loss = hosts.mean_squared_error()
    whole = trained(compiled(dense_model(), adam(), loss, **eager))
    half = trained(compiled(dense_model(), adam(), loss, **eager), 0, stop)
    path = str(tmp_path / ("model.h5" if hosts.IS_KERAS2 else "model.keras"))
    half.save(path)
    loaded = keras.models.load_model(path, custom_objects=CLASSES)
    if eager:
        loaded.run_eagerly = True
    found = loaded.optimizer.get_config()["accum_iters"]
    assert found == {"class_name": "AccumulationSchedule", "config": SCHEDULE.get_config()}
    assert loaded.optimizer.window_position == half.optimizer.window_position
    trained(loaded, stop)
    assert_equal(everything(loaded), everything(whole), rtol=0, atol=0)
    assert_moved(weights(half), weights(whole), by=1e-3)
    assert_equal(state(whole), state(big_batches()))


def everything(model):
    """Weights and state, by names that a loaded model has, too."""
    return {**dict(enumerate(model.get_weights())), **model.optimizer.get_state()}


def test_a_state_of_the_stock_optimizer_goes_on_with_its_window():
    """After one update, the next window has three micro-batches."""
    optimizer = adam()
    optimizer.set_state({"completed_updates": 1})
    assert optimizer.accum_iters == LENGTHS[1]
    other = hosts.ours("Adam", **CASES["adam"].arguments)
    trained(compiled(dense_model(), other), 0, 1)
    ours = type(optimizer).from_optimizer(other, accum_iters=SCHEDULE)
    assert (ours.accum_iters, ours.completed_updates) == (LENGTHS[1], 1)
    if hosts.IS_KERAS2:  # where a state waits for a train step
        hosts.build(compiled(dense_model(), ours))
    assert int(ours.get_state()["accum_iters"]) == LENGTHS[1]


@pytest.mark.parametrize("accum_iters", [SCHEDULE, by_operators], ids=["schedule", "function"])
def test_copies_and_conversions_keep_it(accum_iters):
    optimizer = adam(accum_iters)
    for other in (
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
        type(optimizer).from_optimizer(optimizer, learning_rate=0.5),
    ):
        assert [other.accum_iters, *lengths_of(other)] == [1, *LENGTHS]
    assert type(optimizer).from_optimizer(optimizer, accum_iters=4).accum_iters == 4
    assert "accum_iters" not in optimizer.to_stock().get_config()


def lengths_of(optimizer):
    return [optimizer._accumulation.options.length_at(updates) for updates in range(5)]


def test_a_partial_window_and_a_dropped_micro_batch():
    model = compiled(dense_model(), adam(skip_nonfinite=True))
    bad = np.full_like(Y[:2], np.nan)
    model.train_on_batch(X[:2], bad)
    trained(model, 0, 2)
    optimizer = model.optimizer
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 1)
    model.train_on_batch(X[:2], bad)
    optimizer.apply_partial_window()
    assert (optimizer.completed_updates, optimizer.window_position) == (2, 0)
    trained(model, 2, 5)
    assert (optimizer.completed_updates, optimizer.window_position) == (3, 0)


# -- callbacks -------------------------------------------------------------------------------------


@keras2_has_no("PythonGate")
def test_python_gate():
    model = compiled(dense_model(), adam())
    fit(model, callbacks=[hosts.accum.PythonGate()])
    assert model.optimizer.completed_updates == len(LENGTHS)
    assert_equal(state(model), state(big_batches()))


@keras2_has_no("PythonGate")
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch needs no PythonGate")
def test_python_gate_refuses_a_function():
    with pytest.raises(ValueError, match="PythonGate can't be used with accum_iters=<function"):
        fit(compiled(dense_model(), adam(by_operators)), callbacks=[hosts.accum.PythonGate()])


@keras2_has_no("AccumulationMonitor")
def test_the_monitor_logs_the_batch_of_each_window():
    found = []

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append((logs["completed_updates"], logs["effective_batch"]))

    monitor = hosts.accum.AccumulationMonitor(batch_size=2, noise_scale=True)
    fit(compiled(dense_model(), adam()), callbacks=[monitor, Log()])
    lengths = [length for length in LENGTHS for _ in range(length)]
    assert [batch for _, batch in found] == [2 * length for length in lengths]
    assert found[-1][0] == len(LENGTHS)


def test_a_callback_sets_accum_iters_by_epoch():
    model = compiled(dense_model(), adam(3))
    epochs = {0: 1, 1: 3, 2: 2}
    x, y = X[:12], Y[:12]
    by_epoch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(model.optimizer, "accum_iters", epochs[epoch])
    )
    arguments = {"batch_size": 2, "shuffle": False, "verbose": 0}
    model.fit(x, y, epochs=3, callbacks=[by_epoch], **arguments)
    assert model.optimizer.completed_updates == 6 + 2 + 3
    assert model.optimizer.accum_iters == 2
    big = compiled(dense_model(), hosts.stock("Adam", **CASES["adam"].arguments))
    for length in epochs.values():
        big.fit(x, y, **{**arguments, "batch_size": 2 * length})
    assert_equal(state(model), state(big))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 2.5, True, None, 2**31, "4"])
def test_a_function_must_return_a_length(value):
    """At construction, and whenever Python sees the value."""
    with pytest.raises((ValueError, TypeError), match=r"must return an integer >= 1.*Received: "):
        adam(lambda updates: value)
    optimizer = adam(lambda updates: 2 if updates < 1 else value)
    assert optimizer.accum_iters == 2
    optimizer.set_state({"completed_updates": 0})
    with pytest.raises((ValueError, TypeError), match="must return an integer >= 1"):
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
    assert optimizer.accum_iters == 1
    with pytest.raises(AttributeError, match=r"can't be set.*from_optimizer.*accum_iters=3"):
        optimizer.accum_iters = 3
    for value in (SCHEDULE, by_operators):
        with pytest.raises(TypeError, match="`accum_iters` must be an integer >= 1"):
            adam(2).accum_iters = value


def test_a_config_cannot_hold_a_function():
    optimizer = adam(by_operators)
    with pytest.raises(ValueError, match="can't hold a function.*Schedule.*accum_iters=<"):
        optimizer.get_config()


def test_a_schedule_is_part_of_a_config():
    optimizer = adam()
    config = json.loads(json.dumps(optimizer.get_config()))
    assert type(optimizer).from_config(config).get_config() == optimizer.get_config()


# -- several devices, and loss scales --------------------------------------------------------------


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW or hosts.IS_KERAS2, reason="about tf.distribute")
@pytest.mark.parametrize("late, has_python_gate", [({}, False), (LATE, True)])
def test_replicas(late, has_python_gate, strategy):
    with strategy.scope():
        model = compiled(dense_model(), adam(**late))
    fit(model, callbacks=[hosts.accum.PythonGate()] * has_python_gate)
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
    assert model.optimizer.accum_iters == LENGTHS[-1]
    assert_equal(weights(model), weights(big_batches()), rtol=1e-5, atol=1e-6)
