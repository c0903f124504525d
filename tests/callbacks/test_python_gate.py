"""`PythonGate`: Python picks one of two traced functions for each micro-batch of `fit`."""

import functools

import hosts
import numpy as np
import pytest
from cases import CASES, on_adam, on_each_kind_of_state, quick_once, skip_file_on_keras2, thorough
from hosts import keras
from training import (
    BIG,
    EPOCHS,
    LENGTH,
    MICRO,
    DenseEmbedding,
    assert_equal,
    assert_moved,
    assert_same_training,
    batches,
    big_batch,
    compiled,
    data,
    dense_model,
    embedding_model,
    fit,
    slots,
    state,
    train,
    weights,
)

from keras_accum.callbacks.python_gate import Known

pytestmark = quick_once

skip_file_on_keras2("PythonGate")

picked = pytest.mark.skipif(
    hosts.IS_TORCH, reason="PythonGate does nothing on PyTorch, whose train step isn't traced"
)


def python_gate():
    return hosts.accum.PythonGate()


def model_of(case, **arguments):
    optimizer = hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **arguments})
    return compiled(dense_model(), optimizer)


def assert_big_batches(model, case, ends, micro_batches=None, start=0):
    """The model equals one of the stock optimizer, whose big batches end after these micro-batches.

    On PyTorch, where PythonGate does nothing, two models of ours would be the same training.
    """
    x, y = data() if micro_batches is None else micro_batches
    x, y = (np.concatenate([array] * EPOCHS) for array in (x, y))
    stock = compiled(dense_model(), hosts.stock(case.name, **case.arguments))
    before = weights(stock)
    for end in ends:
        part = slice(start * MICRO, end * MICRO)
        stock.train_on_batch(x[part], y[part])
        start = end
    assert_moved(before, weights(stock))
    assert_equal(weights(model), weights(stock))
    assert_equal(slots(model), slots(stock))
    assert model.optimizer.completed_updates == len(ends)


class AtEachMicroBatch(keras.callbacks.Callback):
    """Call `function(number)` after each micro-batch, with the model's variables up to date."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.number = 0

    def on_train_batch_end(self, batch, logs=None):
        if hosts.BACKEND == "jax":
            self.model.jax_state_sync()
        self.number += 1
        self.function(self.number)


class CountsTraces(keras.Model):
    """A network with its own train step, which runs in Python once per trace."""

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(2)
        self.traces = 0

    def call(self, x):
        return self.out(x)

    def train_step(self, *arguments):
        self.traces += 1
        return super().train_step(*arguments)


@on_each_kind_of_state
def test_equals_big_batch(case):
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    assert_same_training(train(optimizer, MICRO, callbacks=[python_gate()]), big_batch(case))


@on_adam
def test_only_the_end_of_a_window_moves_anything(case):
    model = model_of(case)
    hosts.build(model)
    last = state(model)
    moved = []

    def look(number):
        nonlocal last
        found = state(model)
        moved.append(any((found[name] != last[name]).any() for name in found))
        last = found

    fit(model, MICRO, callbacks=[python_gate(), AtEachMicroBatch(look)], epochs=2)
    assert moved == [number % LENGTH == 0 for number in range(1, len(moved) + 1)]
    assert len(moved) == 2 * len(batches(MICRO))


@picked
def test_each_function_is_traced_once():
    counts = []
    for callbacks in ([], [python_gate()]):
        model = CountsTraces()
        model.compile(hosts.ours("Adam", accum_iters=LENGTH), "mse")
        fit(model, MICRO, callbacks=callbacks)
        traces = model.traces
        fit(model, MICRO, callbacks=callbacks)
        assert model.traces == traces, "traced again"
        counts.append(traces)
    # TensorFlow traces a function that creates variables twice.
    assert counts[0] < counts[1] <= 2 * counts[0]


@picked
def test_the_train_function_is_restored():
    model = model_of_adam()
    model.make_train_function()
    before = model.train_function
    fit(model, MICRO, callbacks=[python_gate()])
    assert model.train_function is before
    assert "train_step" not in vars(model)


def test_a_model_that_is_compiled_again():
    """The same callback serves the model with another optimizer."""
    callback = python_gate()
    model = model_of_adam()
    fit(model, MICRO, callbacks=[callback])
    compiled(model, hosts.ours("SGD", accum_iters=2 * LENGTH, learning_rate=2**-3))
    fit(model, MICRO, callbacks=[callback])
    ends = range(2 * LENGTH, EPOCHS * len(batches(MICRO)) + 1, 2 * LENGTH)
    assert_big_batches(model, CASES["sgd"], ends)


@on_adam
def test_changes_of_the_window_from_outside(case):
    """Partial windows are closed and accum_iters is changed, between epochs and inside one."""
    model = model_of(case)

    def interfere(number):
        if number == 6:
            model.optimizer.accum_iters = 3
        if number == 17:
            model.optimizer.apply_partial_window()

    others = [AtEachMicroBatch(interfere), hosts.accum.ApplyPartialWindow()]
    fit(model, MICRO, callbacks=[python_gate(), *others])
    assert_big_batches(model, case, [4, 8, 11, 12, 15, 17, 20, 23, 24, 27, 30, 33, 36])


@on_adam
def test_without_tracing(case):
    """With run_eagerly, too, PythonGate changes no number."""
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    actual = train(optimizer, MICRO, compile={"run_eagerly": True}, callbacks=[python_gate()])
    assert_same_training(actual, big_batch(case))


@thorough
@on_adam
@pytest.mark.skipif(
    hosts.IS_TORCH, reason="torch.compile takes longer than all other tests of PythonGate"
)
def test_jit_compile(case):
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    actual = train(optimizer, MICRO, compile={"jit_compile": True}, callbacks=[python_gate()])
    assert_same_training(actual, big_batch(case))


@on_adam
def test_embedding(case):
    """On TensorFlow the gradients are sparse."""
    arrays = np.arange(24 * 5).reshape(24, 5) % 6, data()[1]
    stock = hosts.stock(case.name, **case.arguments)
    expected = train(stock, BIG, lambda: embedding_model(DenseEmbedding), arrays=arrays)
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    build = functools.partial(embedding_model, keras.layers.Embedding)
    actual = train(optimizer, MICRO, build, callbacks=[python_gate()], arrays=arrays)
    assert_same_training(actual, expected)


def model_of_adam(compile=None, **arguments):
    settings = {"accum_iters": LENGTH, "learning_rate": 2**-5, **arguments}
    return compiled(dense_model(), hosts.ours("Adam", **settings), **(compile or {}))


def test_a_stock_optimizer_is_refused():
    model = compiled(dense_model(), hosts.stock("Adam"))
    with pytest.raises(
        TypeError, match="PythonGate needs a model that is compiled with an optimizer"
    ):
        fit(model, MICRO, callbacks=[python_gate()])


@picked
def test_skips_that_only_the_device_knows_are_refused():
    model = model_of_adam(skip_nonfinite=True)
    with pytest.raises(ValueError, match="PythonGate can't be used with skip_nonfinite=True"):
        fit(model, MICRO, callbacks=[python_gate()])
    model = compiled(dense_model(), hosts.loss_scaled(hosts.ours("SGD", accum_iters=2), 4.0))
    with pytest.raises(ValueError, match="PythonGate can't be used with a LossScaleOptimizer"):
        fit(model, MICRO, callbacks=[python_gate()])


@picked
def test_steps_per_execution_is_refused():
    model = model_of_adam(compile={"steps_per_execution": 3})
    with pytest.raises(ValueError, match="PythonGate can't be used with steps_per_execution=3"):
        fit(model, MICRO, callbacks=[python_gate()])


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="only Keras 2's fit has parameter servers")
def test_parameter_servers_are_refused(monkeypatch):
    model = model_of_adam()
    strategy = object.__new__(hosts.tf.distribute.ParameterServerStrategy)
    monkeypatch.setattr(type(model), "distribute_strategy", strategy)
    callback = python_gate()
    callback.set_model(model)
    with pytest.raises(ValueError, match="PythonGate can't be used with ParameterServerStrategy"):
        callback.on_train_begin()


def train_steps(number):
    """Return a model whose train step makes this number of micro-batches."""

    class Model(CountsTraces):
        def train_step(self, *arguments):
            if hosts.BACKEND == "jax":
                state, data = arguments
                for _ in range(number):
                    logs, state = super().train_step(state, data)
                return ({}, state) if number == 0 else (logs, state)
            logs = {}
            for _ in range(number):
                logs = super().train_step(*arguments)
            return logs

    return Model()


@picked
@pytest.mark.parametrize("number", [2, 3])  # with windows of 2, three micro-batches look like one
def test_a_train_step_of_several_micro_batches_is_refused(number):
    model = train_steps(number)
    model.compile(hosts.ours("Adam", accum_iters=2), "mse")
    with pytest.raises(ValueError, match=f"calls the model's optimizer once.* {number} times"):
        fit(model, MICRO, callbacks=[python_gate()])


@picked
def test_a_train_step_without_the_optimizer_is_refused():
    model = train_steps(0)
    model.compile(hosts.ours("Adam", accum_iters=2), "mse")
    with pytest.raises(ValueError, match="calls the model's optimizer once.* 0 times"):
        fit(model, MICRO, callbacks=[python_gate()])


@pytest.mark.skipif(
    hosts.BACKEND != "jax",
    reason="only on JAX does PythonGate count by itself; elsewhere it reads the counters",
)
def test_a_train_step_that_sometimes_skips_the_optimizer_is_refused():
    import jax

    class Skips(CountsTraces):
        def train_step(self, state, data):
            logs, new = super().train_step(state, data)
            is_good = data[0].mean() > 0
            return logs, jax.tree.map(lambda a, b: jax.numpy.where(is_good, a, b), new, state)

    model = Skips()
    model.compile(hosts.ours("Adam", accum_iters=LENGTH), "mse")
    x, y = data()
    x[MICRO : 2 * MICRO] = -1
    with pytest.raises(ValueError, match="PythonGate needs a train step that calls .* once"):
        fit(model, MICRO, (abs(x) * np.sign(x), y), callbacks=[python_gate()])


@pytest.mark.skipif(
    hosts.BACKEND != "jax", reason="only on JAX does a step return before it is computed"
)
def test_counters_are_read_from_jax_only_when_new(monkeypatch):
    reads = []
    read = Known.read
    monkeypatch.setattr(Known, "read", staticmethod(lambda a: reads.append(1) or read(a)))
    fit(model_of_adam(), MICRO, callbacks=[python_gate()], epochs=3)
    assert len(reads) == 1 + 3  # before the first micro-batch, and after each epoch
