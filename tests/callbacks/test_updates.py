"""`OnUpdates`: callbacks get the calls and logs of `fit` at the big batch."""

from types import SimpleNamespace

import hosts
import numpy as np
import pytest
from cases import quick_first, quick_once, skip_file_on_keras2
from hosts import keras
from training import BIG, LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, weights

pytestmark = quick_once

skip_file_on_keras2("OnUpdates")

accum = hosts.accum
PATCHES = [
    f"on_{of}_{when}"
    for of in ("train", "test", "predict", "epoch", "train_batch", "test_batch")
    for when in ("begin", "end")
]


class Recorder(keras.callbacks.Callback):
    """Keeps each call of a hook with its arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if name in PATCHES:
            return lambda *arguments, **named: self.keep(name, *arguments, **named)
        return super().__getattribute__(name)

    def keep(self, name, *arguments, **named):
        *number, logs = [*arguments, *named.values()] or [None]
        self.calls.append((name, number, dict(logs or {})))

    # So that Keras sees hooks for batches.
    def on_train_batch_end(self, batch, logs=None): ...

    def on_test_batch_end(self, batch, logs=None): ...


def assert_calls(actual, expected):
    assert [call[:2] for call in actual] == [call[:2] for call in expected]
    assert any(logs for name, _, logs in expected if name == "on_train_batch_end")
    for (name, _, logs), (_, _, due) in zip(actual, expected):
        assert set(logs) == set(due), name
        found = [logs[key] for key in due]
        np.testing.assert_allclose(found, list(due.values()), 2e-5, err_msg=name)


def both(samples=None):
    """The recorder of a training of ours, and that of the stock optimizer at the big batch."""
    x, y = (array[:samples] for array in data())
    arguments = {"validation_data": (x[:5], y[:5]), "validation_batch_size": BIG}
    recorders = Recorder(), Recorder()
    ours = hosts.ours("Adam", learning_rate=2**-5, accum_iters=LENGTH)
    for optimizer, size, recorder, callbacks in (
        (ours, MICRO, recorders[0], [accum.OnUpdates([recorders[0]])]),
        (hosts.stock("Adam", learning_rate=2**-5), BIG, recorders[1], [recorders[1]]),
    ):
        trained = compiled(dense_model(), optimizer, metrics=["mae"])
        fit(trained, size, (x, y), callbacks=callbacks, **arguments)
        recorder.weights = weights(trained)
    return recorders


# The samples of an epoch. Each may end in a short window, with a short micro-batch.
TRAININGS = {"whole windows": None, "a short micro-batch": 2 * BIG + MICRO + 1}


@quick_first("samples", TRAININGS)
def test_calls_and_logs_are_those_of_the_big_batch(samples):
    actual, expected = both(samples)
    assert_calls(actual.calls, expected.calls)
    assert_equal(actual.weights, expected.weights)
    assert actual.params == {**expected.params, "steps": None}  # epochs may differ


class ClosesAfter(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch in (0, 4):
            self.model.optimizer.apply_partial_window()


# Micro-batches in an epoch, epochs, arguments of the optimizer, callbacks before and after, and the
# calls: [ and ] around an epoch, < and > around an update, with its number.
CALLS = {
    "a window goes on": (
        *(LENGTH + 2, 2, {"reduction": "mean"}, [], []),
        "[ <0 0> <1 ] [ 0> <1 1> ]",
    ),
    "windows end with epochs": (LENGTH + 2, 2, {}, [], [], "[ <0 0> <1 1> ] [ <0 0> <1 1> ]"),
    "windows vary": (
        *(8, 1, {"accum_iters": accum.AccumulationSchedule({0: 1, 2: 3})}, [], []),
        "[ <0 0> <1 1> <2 2> <3 3> ]",
    ),
    "the caller closes": (6, 1, {"accum_iters": None}, [ClosesAfter()], [], "[ <0 0> <1 1> <2 ]"),
    # the update is seen at the next micro-batch
    "closed after": (6, 1, {"accum_iters": None}, [], [ClosesAfter()], "[ <0 0> <1 1> <2 ]"),
    "no accumulation": (2, 1, {"accum_iters": 1}, [], [], "[ <0 0> <1 1> ]"),
    "dropped": (4, 1, {"accum_iters": 1, "skip_norm": 1e-9}, [], [], "[ <0 ]"),
}


@pytest.mark.parametrize("count, epochs, ours, before, after, calls", CALLS.values(), ids=CALLS)
def test_when_an_update_is_told(count, epochs, ours, before, after, calls):
    model = compiled(dense_model(), hosts.ours("SGD", **{"accum_iters": LENGTH, **ours}))
    arrays, recorder = [array[: count * MICRO] for array in data()], Recorder()
    callbacks = [*before, accum.OnUpdates([recorder]), *after]
    fit(model, MICRO, arrays, epochs=epochs, callbacks=callbacks)
    signs = {"on_epoch_begin": "[", "on_epoch_end": "]"}
    signs.update(on_train_batch_begin="<{}", on_train_batch_end="{}>")
    found = [signs[n].format(*number) for n, number, _ in recorder.calls if n in signs]
    assert " ".join(found) == calls


# -- callbacks of Keras --------------------------------------------------------------------------


def on_both(train):
    """What `train(make, size, at)` returns for both. `at` puts callbacks where they belong."""
    ours = train(
        lambda: hosts.ours("SGD", learning_rate=2**-3, accum_iters=LENGTH),
        MICRO,
        lambda *callbacks: [accum.OnUpdates(callbacks)],
    )
    return ours, train(lambda: hosts.stock("SGD", learning_rate=2**-3), BIG, lambda *c: [*c])


def test_model_checkpoint_counts_updates(tmp_path):
    def train(make, size, at):
        folder = tmp_path / str(size)
        folder.mkdir()
        path = str(folder / "{epoch}-{batch}-{loss:.3f}.weights.h5")
        checkpoint = keras.callbacks.ModelCheckpoint(path, save_freq=2, save_weights_only=True)
        model = compiled(dense_model(), make())
        fit(model, size, callbacks=at(checkpoint))
        saved = {}
        for path in sorted(folder.iterdir()):
            model.load_weights(str(path))
            saved.update({(path.name, name): value for name, value in weights(model).items()})
        assert len({name for name, _ in saved}) == 4
        return saved

    ours, stock = on_both(train)
    assert set(ours) == set(stock)
    assert_equal(ours, stock)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="refused on Keras 2")
def test_tensorboard_counts_updates(monkeypatch):
    """TensorBoard itself isn't installed: what it would write is kept."""
    board = keras.callbacks.TensorBoard
    for name in ("_pop_writer", "_close_writers", "on_epoch_end"):
        monkeypatch.setattr(board, name, lambda *arguments: None)
    monkeypatch.setattr(board, "_train_writer", None)

    def train(make, size, at):
        written = []
        monkeypatch.setattr(board, "_push_writer", lambda self, _, step: written.append(step))
        callback = board("unused", write_graph=False, update_freq=2)
        callback._summary_module = SimpleNamespace(
            scalar=lambda name, value, step: written.extend([step, value])
        )
        fit(compiled(dense_model(), make()), size, epochs=2, callbacks=at(callback))
        return written

    ours, stock = on_both(train)
    np.testing.assert_allclose(ours, stock, 2e-5)
    assert len(stock) == 1 + 6 * 3


def test_evaluate_outside_of_fit():
    recorder, model = Recorder(), compiled(dense_model(), hosts.ours("SGD", accum_iters=LENGTH))
    x, y = data()
    model.evaluate(x, y, batch_size=BIG, verbose=0, callbacks=[accum.OnUpdates([recorder])])
    assert [name for name, _, _ in recorder.calls].count("on_test_batch_end") == 3
    assert recorder.model is model and recorder.params["steps"] == 3


# -- what is refused -----------------------------------------------------------------------------


def of_keras(name, **arguments):
    return lambda: [getattr(keras.callbacks, name)("unused", **arguments)]


REFUSED = {
    "no list": (Recorder, TypeError, "`callbacks` must be a list"),
    "a class": (lambda: [Recorder], TypeError, "not of classes.*Received: .*<class"),
    "ours": (
        lambda: [accum.MicroBatchWeights(lambda x, y, y_pred, sample_weight: 1)],
        *(ValueError, "MicroBatchWeights can't.*micro-batches"),
    ),
    "itself": (lambda: [accum.OnUpdates([])], ValueError, "OnUpdates can't be in OnUpdates"),
}
if hosts.IS_TF_KERAS:  # whose own count these callbacks read or write
    REFUSED.update(
        board=(of_keras("TensorBoard", update_freq=2), ValueError, "TensorBoard can't be in"),
        backup=(of_keras("BackupAndRestore", save_freq=2), ValueError, "BackupAndRestore can't"),
    )


@pytest.mark.parametrize("callbacks, error, said", REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_in_the_list(callbacks, error, said):
    with pytest.raises(error, match=said):
        accum.OnUpdates(callbacks())


def test_several_micro_batches_in_a_call():
    model = compiled(dense_model(), hosts.ours("SGD"), steps_per_execution=4)
    with pytest.raises(ValueError, match="steps_per_execution=4"):  # Keras's own on PyTorch
        fit(model, MICRO, callbacks=[accum.OnUpdates([])])
