"""The caller closes windows: between train steps, or in a train step by a tensor."""

import json

import hosts
import numpy as np
import pytest
import steps
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, quick_first, thorough
from formats import CLASSES
from hosts import keras
from training import (
    assert_equal,
    assert_moved,
    compiled,
    data,
    dense_model,
    go_on,
    state,
    weights,
)

LENGTHS = [2, 1, 3, 2]
can_close = keras2_has_no("`close_window`")


def micro_batches():
    """A list of windows: each window has micro-batches, and each micro-batch has gradients."""
    random = np.random.default_rng(6)
    signs = [random.choice([-1, 1], shape) for shape in steps.SHAPES.values()]
    return [
        [
            [(s * random.uniform(0.5, 1.5, s.shape)).astype(hosts.FLOATX) for s in signs]
            for _ in range(length)
        ]
        for length in LENGTHS
    ]


def made(optimizer):
    variables = steps.variables()
    hosts.build_on(optimizer, variables)
    return optimizer, variables


def assert_is_next_big_step(window, ours, mine, theirs, big_step, stock):
    before = steps.weights_and_state(ours, mine)
    big_step([np.mean(gradients, axis=0) for gradients in zip(*window)])
    assert_equal(before, steps.weights_and_state(stock, theirs))


@on_adam_and_amsgrad
@pytest.mark.usefixtures("every_gate")
def test_between_train_steps(case):
    ours, mine = made(hosts.ours(case.name, **case.arguments, accum_iters=None))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    step, big_step = steps.stepper(ours, mine), steps.stepper(stock, theirs)
    for updates, window in enumerate(micro_batches()):
        before = steps.weights_and_state(ours, mine)
        for position, gradients in enumerate(window):
            assert (ours.completed_updates, ours.window_position) == (updates, position)
            step(gradients)
        assert_equal(steps.weights_and_state(ours, mine), before, rtol=0, atol=0)
        ours.apply_partial_window()
        assert_is_next_big_step(window, ours, mine, theirs, big_step, stock)
    ours.apply_partial_window()
    assert ours.completed_updates == len(LENGTHS)


def closing_stepper(optimizer, variables):
    """Return a function of a condition and gradients, which is traced once."""
    if hosts.IS_TENSORFLOW:
        tf = hosts.tf

        @tf.function
        def step(when, *grads):
            optimizer.close_window(when)
            optimizer.apply_gradients(list(zip(grads, variables)))

        def run(when, grads):
            step(tf.constant(when), *map(tf.constant, grads))

        run.traced = step
        return run
    if hosts.IS_TORCH:

        def run(when, grads):
            optimizer.close_window(hosts.keras.ops.convert_to_tensor(when))
            hosts.apply(optimizer, grads, variables)

        return run
    import jax

    traces = []

    @jax.jit
    def step(when, *arguments):
        traces.append(when)
        optimizer.close_window(when)
        return optimizer.stateless_apply(*arguments)

    def run(when, grads):
        own = optimizer.variables
        found = step(when, [v.value for v in own], grads, [v.value for v in variables])
        for v, value in zip([*variables, *own], [*found[0], *found[1]]):
            v.assign(value)
        assert len(traces) == 1

    return run


@can_close
@on_adam_and_amsgrad
@quick_first("accum_iters", [None, 50])
@pytest.mark.usefixtures("every_gate")
def test_in_a_train_step(case, accum_iters):
    ours, mine = made(hosts.ours(case.name, **case.arguments, accum_iters=accum_iters))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    step, big_step = closing_stepper(ours, mine), steps.stepper(stock, theirs)
    for window in micro_batches():
        before = steps.weights_and_state(ours, mine)
        for gradients in window[:-1]:
            step(False, gradients)
        assert_equal(steps.weights_and_state(ours, mine), before, rtol=0, atol=0)
        step(True, window[-1])
        assert ours.window_position == 0
        assert_is_next_big_step(window, ours, mine, theirs, big_step, stock)
    if hosts.IS_TENSORFLOW:
        from graphs import conditionals, operations

        assert step.traced.experimental_get_tracing_count() == 1
        specs = [hosts.tf.TensorSpec(s, hosts.FLOATX) for s in steps.SHAPES.values()]
        flag = hosts.tf.TensorSpec((), "bool")
        found = conditionals(operations(step.traced.python_function, flag, *specs))
        assert found == (ours.gate == "conditional")


@can_close
def test_a_dropped_micro_batch_closes_the_window_of_the_others():
    arguments = CASES["adam"].arguments
    ours, mine = made(hosts.ours("Adam", **arguments, accum_iters=None, skip_nonfinite=True))
    stock, theirs = made(hosts.stock("Adam", **arguments))
    step, big_step = closing_stepper(ours, mine), steps.stepper(stock, theirs)
    window = micro_batches()[0]
    bad = [np.full_like(gradient, np.nan) for gradient in window[0]]
    step(True, bad)
    assert (ours.completed_updates, ours.window_position) == (0, 0)
    for gradients in window:
        step(False, gradients)
    step(True, bad)
    assert (ours.completed_updates, ours.window_position) == (1, 0)
    assert_is_next_big_step(window, ours, mine, theirs, big_step, stock)


@can_close
@pytest.mark.skipif(hosts.IS_TORCH, reason="PyTorch is eager")
def test_outside_of_the_traced_function():
    ours, mine = made(hosts.ours("Adam", accum_iters=3))
    step = steps.stepper(ours, mine)
    ours.close_window()
    with pytest.raises(ValueError, match="`close_window` was called outside of the traced"):
        step(micro_batches()[0][0])


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



@keras2_has_no("AccumulationMonitor")
def test_the_monitor_sees_windows_that_a_callback_closes():
    found = []

    class Close(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch % 3 == 2:
                self.model.optimizer.apply_partial_window()

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append((logs["completed_updates"], logs["window_position"]))
            assert "effective_batch" not in logs

    x, y = data()
    model = compiled(dense_model(), adam())
    monitor = hosts.accum.AccumulationMonitor(batch_size=2)
    arguments = {"shuffle": False, "verbose": 0}
    callbacks = [Close(), monitor, Log()]
    model.fit(x[:12], y[:12], batch_size=2, callbacks=callbacks, **arguments)
    assert found == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    big = compiled(dense_model(), hosts.stock("Adam", **CASES["adam"].arguments))
    big.fit(x[:12], y[:12], batch_size=6, **arguments)
    assert_equal(state(model), state(big))


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
