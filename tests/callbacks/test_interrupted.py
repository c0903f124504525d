"""Ctrl-C anywhere in what our callbacks put on a model and its losses, and two threads there."""

import threading
import types
from pathlib import Path

import hosts
import pytest
from cases import once_by_torch, skip_file_on_keras2, thorough
from hosts import accum, keras
from steps import interrupted_at, lines_run_by
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, weights

from keras_accum.host import scopes

skip_file_on_keras2("callbacks that change a train step")

ARRAYS = [array[: 2 * MICRO] for array in data()]
# The files with scopes. On TensorFlow, a traced step runs no others.
FILES = {"train_function.py", "scopes.py"}
if not hosts.IS_TENSORFLOW:
    FILES |= {"training.py", "hooks.py", "overrides.py", "tap.py", "weighing.py"}
    FILES |= {"passes.py", "metrics.py"}

# A callback, and the optimizer.
TRAININGS = {
    "weighted": (None, lambda: hosts.ours("SGD", accum_iters=2, reduction="weighted")),
}
if hosts.IS_KERAS3:
    TRAININGS["slices"] = (lambda: accum.MicroBatches(1), lambda: hosts.stock("SGD"))


def list_members(model):
    """Return what a model, its losses and metrics have. Keras's caches begin with _."""
    container = model._compile_loss if hosts.IS_KERAS3 else model.compiled_loss
    owners = [container, *hosts.list_losses(model), *model.metrics]
    of_model = {("model", name) for name in vars(model) if not name.startswith("_")}
    return of_model | {(type(owner), name) for owner in owners for name in vars(owner)}


@once_by_torch
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[thorough] * hosts.IS_TF_KERAS) for name in TRAININGS]
)
def test_interrupted_anywhere(name):
    """Nothing of ours is left, but for a train function that the next training takes away."""
    make, optimizer = TRAININGS[name]
    model = compiled(dense_model(), optimizer(), **{"run_eagerly": False} if make else {})
    callbacks = [make()] if make else []
    hosts.build(model)
    variables = [*model.weights, *hosts.listed(model.optimizer)]
    values = [hosts.array(v) for v in variables]

    def train(callbacks=()):
        for v, value in zip(variables, values):
            hosts.assign(v, value)
        fit(model, MICRO, ARRAYS, epochs=1, callbacks=list(callbacks))
        return weights(model)

    expected, members = train(), list_members(model)
    train(callbacks)  # runs what comes once only
    lines = lines_run_by(lambda: train(callbacks))
    lines = [line for line in lines if Path(line[0]).name in FILES]
    assert len(lines) > 20
    for line in lines:
        with pytest.raises(KeyboardInterrupt), interrupted_at(line):
            train(callbacks)
        assert list_members(model) == members, line
        assert_equal(train(), expected, rtol=0, atol=0)
        assert list_members(model) == members, line
        assert "_put_back" in repr(model.train_function) or not is_ours(model.train_function), line


def is_ours(function):
    return (type(function).__module__ or "").startswith("keras_accum.")


def test_interrupted_in_the_end_of_an_inner_scope():
    """The outer one ends then, and the inner one must not give the outer's value back."""
    owner = types.SimpleNamespace(name="own")

    def set_twice():
        with scopes.attribute(owner, "name", "outer"):
            assert owner.name == "outer"
            with scopes.attribute(owner, "name", "inner"):
                assert owner.name == "inner"
        assert owner.name == "own"

    is_interrupted, number = True, 0
    while is_interrupted:
        is_interrupted, number = False, number + 1
        try:
            with interrupted_at(number=number):
                scopes.undone(set_twice)()
        except KeyboardInterrupt:
            is_interrupted = True
        assert vars(owner) == {"name": "own"}, number
        assert not scopes._open.scopes
    assert number > 20


def test_a_scope_that_ends_in_another_thread():
    owner = types.SimpleNamespace(name="own")
    scope = scopes.attribute(owner, "name", "ours")
    scope.__enter__()
    thread = threading.Thread(target=scope.__exit__)
    thread.start()
    thread.join()
    assert owner.name == "own" and not scopes._open.scopes


@pytest.mark.skipif(not hosts.IS_TORCH, reason="elsewhere, a loss is called in a trace alone")
def test_two_models_in_two_threads_share_a_loss():
    """Each sees its own calls, and both train as alone. The loss itself isn't changed."""
    both_are_in = threading.Barrier(2, timeout=60)

    class Slow(keras.losses.MeanSquaredError):
        def call(self, y_true, y_pred):
            assert "call" not in vars(self)
            if threading.current_thread() is not threading.main_thread():
                both_are_in.wait()
            return super().call(y_true, y_pred)

    loss, found = Slow(), []

    def train():
        optimizer = hosts.ours("SGD", accum_iters=LENGTH, reduction="weighted")
        model = compiled(dense_model(), optimizer, loss)
        fit(model, MICRO, epochs=1)
        found.append(weights(model))

    train()
    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for each in found[1:]:
        assert_equal(each, found[0])
