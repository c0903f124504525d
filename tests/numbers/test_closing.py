"""The caller closes windows: between train steps, or in a train step by a tensor."""

import json

import hosts
import numpy as np
import pytest
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first, thorough
from formats import CLASSES
from hosts import keras
from steps import assert_windows_equal_big_batches, gradients, made, stepper
from training import (
    assert_moved,
    compiled,
    data,
    dense_model,
    go_on,
    weights,
)

LENGTHS = [2, 1, 3, 2]
can_close = keras2_has_no("`close_window`")


def pair(case, **arguments):
    """Our optimizer and the stock one, with their variables."""
    ours, mine = made(hosts.ours(case.name, **{**case.arguments, **arguments}))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    return ours, stock, mine, theirs


@on_adam_and_amsgrad
@pytest.mark.usefixtures("every_gate")
def test_between_train_steps(case):
    ours, stock, mine, theirs = pair(case, accum_iters=None)
    step = stepper(ours, mine)

    def close(grads, is_last):
        step(grads)
        if is_last:
            ours.apply_partial_window()

    assert_windows_equal_big_batches(ours, stock, mine, theirs, gradients(LENGTHS), close)
    ours.apply_partial_window()
    assert ours.completed_updates == len(LENGTHS)


@can_close
@on_adam_and_amsgrad
@quick_first("accum_iters", [None, 50])
@pytest.mark.usefixtures("every_gate")
def test_in_a_train_step(case, accum_iters):
    ours, stock, mine, theirs = pair(case, accum_iters=accum_iters)
    step = stepper(ours, mine, ours.close_window)
    flag = hosts.tf.TensorSpec((), "bool") if hosts.IS_TENSORFLOW else None
    windows = gradients(LENGTHS)
    assert_windows_equal_big_batches(ours, stock, mine, theirs, windows, step, flag)


@can_close
def test_a_dropped_micro_batch_closes_the_window_of_the_others():
    ours, mine = made(hosts.ours("SGD", learning_rate=1.0, accum_iters=None, skip_nonfinite=True))
    step = stepper(ours, mine, ours.close_window)
    (one, two), before = gradients([2])[0], list(map(hosts.array, mine))
    bad = [np.full_like(gradient, np.nan) for gradient in one]
    step(bad, True)
    assert (ours.completed_updates, ours.window_position) == (0, 0)
    for grads, closes in ((one, False), (two, False), (bad, True)):
        step(grads, closes)
    assert (ours.completed_updates, ours.window_position) == (1, 0)
    kernel = before[0] - (one[0] + two[0]) / 2
    np.testing.assert_allclose(hosts.array(mine[0]), kernel, rtol=1e-6)


@can_close
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch is eager")
def test_outside_of_the_traced_function():
    ours, mine = made(hosts.ours("Adam", accum_iters=3))
    ours.close_window()
    with pytest.raises(ValueError, match="`close_window` was called outside of the traced"):
        stepper(ours, mine)(gradients()[0][0])


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="about Keras 2.0 to 2.3")
def test_keras_2_has_no_train_step():
    with pytest.raises(RuntimeError, match="isn't available on Keras 2.*apply_partial_window"):
        hosts.ours("Adam", accum_iters=3).close_window()


# -- accum_iters=None ------------------------------------------------------------------------------


def adam(**arguments):
    return hosts.ours("Adam", **{**CASES["adam"].arguments, "accum_iters": None, **arguments})


def test_none_is_part_of_a_config_and_of_a_file(tmp_path):
    optimizer = adam()
    config = json.loads(json.dumps(optimizer.get_config()))
    for other in (optimizer, type(optimizer).from_config(config)):
        assert other.accum_iters is None
        assert "accum_iters=None" in repr(other)
    assert type(optimizer).from_optimizer(optimizer, learning_rate=0.5).accum_iters is None
    model = compiled(dense_model(), optimizer, hosts.mean_squared_error())
    go_on(model, stop=3)
    path = str(tmp_path / ("model.h5" if hosts.IS_KERAS2 else "model.keras"))
    model.save(path)
    loaded = keras.models.load_model(path, custom_objects=CLASSES)
    assert (loaded.optimizer.accum_iters, loaded.optimizer.window_position) == (None, 3)
    start = weights(model)
    for each in (model, loaded):
        each.optimizer.apply_partial_window()
    assert_moved(start, weights(model), by=1e-3)
    for one, other in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(one, other)


def test_none_can_be_set_and_replaced():
    model = compiled(dense_model(), adam(accum_iters=2))
    optimizer = model.optimizer
    go_on(model, stop=1)
    optimizer.accum_iters = None
    go_on(model, stop=4)  # closes the open window first, which keeps its length
    assert (optimizer.accum_iters, optimizer.completed_updates) == (None, 1)
    assert optimizer.window_position == 3
    optimizer.apply_partial_window()
    optimizer.accum_iters = 2
    go_on(model, stop=3)
    assert (optimizer.completed_updates, optimizer.window_position) == (3, 1)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 tells optimizers of the end")
def test_a_training_without_an_update_says_so():
    x, y = data()
    with pytest.warns(UserWarning, match="no update: 4 micro-batches are in the open window"):
        compiled(dense_model(), adam()).fit(x[:8], y[:8], batch_size=2, verbose=0)


@keras2_has_no("PythonGate")
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch needs no PythonGate")
def test_python_gate_refuses_none():
    x, y = data()
    model = compiled(dense_model(), adam())
    with pytest.raises(ValueError, match="PythonGate can't be used with accum_iters=None"):
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[hosts.accum.PythonGate()])


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW or hosts.IS_KERAS2, reason="about tf.distribute")
def test_a_window_closes_if_one_replica_says_so(strategy):
    tf = hosts.tf
    with strategy.scope():
        w = hosts.variable([1.0, 2.0], "w")
        ours = hosts.ours("SGD", learning_rate=0.5, accum_iters=None)
        hosts.build_on(ours, [w])

    @tf.function
    def step(who):
        def replica():
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            ours.close_window(tf.equal(index, who))
            ours.apply_gradients([(tf.ones([2], hosts.FLOATX), w)])

        strategy.run(replica)

    for who, updates in ((5, 0), (1, 1), (5, 1), (0, 2)):
        step(tf.constant(who))
        assert ours.completed_updates == updates
    # Each window's average is 2: the sum over two replicas.
    values = strategy.experimental_local_results(hosts.native(w))
    for value in values:
        np.testing.assert_allclose(value.numpy(), [-1.0, 0.0])
