"""`PythonGate`: Python picks one of two traced functions for each micro-batch of `fit`."""

import hosts
import numpy as np
import pytest
import training
from cases import ADAM, on_adam, on_each_kind_of_state, quick_first, quick_once, skip_file_on_keras2
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    assert_equal,
    compiled,
    data,
    dense_model,
    fit,
    in_windows,
    weights,
)

from keras_accum.callbacks.python_gate import KnownCounters
from keras_accum.options import Options

pytestmark = quick_once

skip_file_on_keras2("PythonGate")

python_gate = hosts.accum.PythonGate
picked = pytest.mark.skipif(hosts.IS_TORCH, reason="PythonGate does nothing on PyTorch")
on_jax = pytest.mark.skipif(hosts.BACKEND != "jax", reason="elsewhere counters are always read")


def assert_big_batches(model, case, ends):
    """The model equals a stock one, whose big batches end after these micro-batches."""
    x, y = (np.concatenate([array] * training.EPOCHS) for array in data())
    stock, start = compiled(dense_model(), hosts.stock(case.name, **case.arguments)), 0
    before = weights(stock)
    for end in ends:
        part = slice(start * MICRO, end * MICRO)
        stock.train_on_batch(x[part], y[part])
        start = end
    training.assert_moved(before, weights(stock))
    assert_equal(weights(model), weights(stock))
    assert_equal(training.slots(model), training.slots(stock))
    assert model.optimizer.completed_updates == len(ends)


class Interferes(keras.callbacks.Callback):
    """Changes the window inside an epoch."""

    number = 0

    def on_train_batch_end(self, batch, logs=None):
        self.number += 1
        optimizer = self.model.optimizer  # on JAX, this updates the model's variables
        if self.number == 6:
            optimizer.accum_iters = 3
        if self.number == 17:
            optimizer.apply_partial_window()


class Steps(keras.Model):
    """Makes several micro-batches in a train step, which runs in Python once per trace."""

    def __init__(self, number=1):
        super().__init__()
        self.out = keras.layers.Dense(2)
        self.number, self.traces = number, 0

    def call(self, x):
        return self.out(x)

    def train_step(self, *arguments):
        self.traces += 1
        results = ({}, arguments[0]) if hosts.BACKEND == "jax" else {}
        for _ in range(self.number):
            results = super().train_step(*arguments)
            arguments = (results[1], *arguments[1:]) if hosts.BACKEND == "jax" else arguments
        return results


@on_each_kind_of_state
def test_equals_big_batch(case):
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    actual = training.train(optimizer, MICRO, callbacks=[python_gate()])
    training.assert_same_training(actual, training.big_batch(case))


@quick_first("how", ["run_eagerly", *["jit_compile"] * (not hosts.IS_TORCH)])  # where it is slow
@on_adam
def test_other_train_steps(case, how):
    """With run_eagerly, too, PythonGate changes no number."""
    actual = training.train(in_windows(ADAM), MICRO, compile={how: True}, callbacks=[python_gate()])
    training.assert_same_training(actual, training.big_batch(case))


@picked
def test_each_function_is_traced_once():
    counts = []
    for callbacks in ([], [python_gate()]):
        model = Steps()
        model.compile(in_windows(ADAM), "mse")
        fit(model, MICRO, callbacks=callbacks)
        traces = model.traces
        fit(model, MICRO, callbacks=callbacks)
        assert model.traces == traces, "traced again"
        counts.append(traces)
    # TensorFlow traces a function that creates variables twice.
    assert counts[0] < counts[1] <= 2 * counts[0]


@on_adam
def test_changes_of_the_window_from_outside(case):
    """Partial windows are closed and accum_iters is changed, between epochs and inside one."""
    model = compiled(dense_model(), in_windows(ADAM))
    callbacks = [python_gate(), Interferes(), hosts.accum.ApplyPartialWindow()]
    fit(model, MICRO, callbacks=callbacks)
    assert_big_batches(model, case, [4, 8, 11, 12, 15, 17, 20, 23, 24, 27, 30, 33, 36])


def loss_scaled():
    return hosts.loss_scaled(in_windows(ADAM), 4.0)


REFUSED = {
    "skip_nonfinite=True": (lambda: in_windows(ADAM, skip_nonfinite=True), {}),
    "skip_norm": (lambda: in_windows(ADAM, skip_norm=1.0), {}),
    "accum_iters=None": (lambda: in_windows(ADAM, accum_iters=None), {}),
    "a LossScaleOptimizer": (loss_scaled, {}),
    "steps_per_execution=3": (lambda: in_windows(ADAM), {"steps_per_execution": 3}),
}


@picked
@pytest.mark.parametrize("said", REFUSED)
def test_what_only_the_device_knows(said):
    make, arguments = REFUSED[said]
    model = compiled(dense_model(), make(), **arguments)
    with pytest.raises(ValueError, match=f"PythonGate can't be used with {said}"):
        fit(model, MICRO, callbacks=[python_gate()])


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="only Keras 2's fit has parameter servers")
def test_parameter_servers_are_refused(monkeypatch):
    model = compiled(dense_model(), in_windows(ADAM))
    strategy = object.__new__(hosts.tf.distribute.ParameterServerStrategy)
    monkeypatch.setattr(type(model), "distribute_strategy", strategy)
    callback = python_gate()
    callback.set_model(model)
    with pytest.raises(ValueError, match="PythonGate can't be used with ParameterServerStrategy"):
        callback.on_train_begin()


@picked
@pytest.mark.parametrize("number", [0, 2, 3])  # in windows of 2, three look like one
def test_a_train_step_of_not_one_micro_batch(number):
    model = Steps(number)
    model.compile(hosts.ours("Adam", accum_iters=2), "mse")
    with pytest.raises(ValueError, match=f"calls the model's optimizer once.* {number} times"):
        fit(model, MICRO, callbacks=[python_gate()])


@on_jax
def test_a_train_step_that_sometimes_skips_the_optimizer_is_refused():
    import jax

    class Skips(Steps):
        def train_step(self, state, data):
            logs, new = super().train_step(state, data)
            is_good = data[0].mean() > 0
            return logs, jax.tree.map(lambda a, b: jax.numpy.where(is_good, a, b), new, state)

    model = Skips()
    model.compile(in_windows(ADAM), "mse")
    x, y = data()
    x[MICRO : 2 * MICRO] = -1
    with pytest.raises(ValueError, match="PythonGate needs a train step that calls .* once"):
        fit(model, MICRO, (abs(x) * np.sign(x), y), callbacks=[python_gate()])


@on_jax
def test_counters_are_read_from_jax_only_when_new(monkeypatch):
    reads = []
    read = KnownCounters.read
    monkeypatch.setattr(KnownCounters, "read", staticmethod(lambda a: reads.append(1) or read(a)))
    fit(compiled(dense_model(), in_windows(ADAM)), MICRO, callbacks=[python_gate()], epochs=3)
    assert len(reads) == 1 + 3  # before the first micro-batch, and after each epoch


@picked
def test_python_asks_for_the_next_length_once_per_window(monkeypatch):
    """It would take as long as all else that Python does in a micro-batch."""
    asked = []
    next_length = Options.next_length

    def ask(options, ops, *numbers):
        if ops is np:  # not in a trace
            asked.append(numbers)
        return next_length(options, ops, *numbers)

    monkeypatch.setattr(Options, "next_length", ask)

    def count(callbacks):
        asked.clear()
        model = compiled(dense_model(), in_windows(ADAM))
        fit(model, MICRO, callbacks=callbacks)
        assert model.optimizer.window_position == 0
        return len(asked), model.optimizer.completed_updates

    (without, updates), (with_gate, _) = count([]), count([python_gate()])
    assert with_gate - without == updates
