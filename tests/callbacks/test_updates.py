"""`OnUpdates`: callbacks get the calls and logs of `fit` at the big batch."""

from types import SimpleNamespace

import hosts
import numpy as np
import pytest
from cases import quick_first, quick_once, skip_file_on_keras2, thorough
from hosts import keras
from training import BIG, LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit, weights

pytestmark = quick_once

skip_file_on_keras2("OnUpdates")

accum = hosts.accum
HOOKS = [
    *(f"on_{mode}_{when}" for mode in ("train", "test", "predict") for when in ("begin", "end")),
    *(
        f"on_{of}_{when}"
        for of in ("epoch", "train_batch", "test_batch")
        for when in ("begin", "end")
    ),
]


class Recorder(keras.callbacks.Callback):
    """Keeps each call of a hook with its arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if name in HOOKS:
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
    for (name, number, logs), (_, _, due) in zip(actual, expected):
        assert set(logs) == set(due), name
        np.testing.assert_allclose(
            [logs[key] for key in due], list(due.values()), 2e-5, err_msg=f"{name} {number}"
        )


def both(samples=None, before=(), on_micro=(), model=dense_model, ours=(), **arguments):
    """The recorder of a training of ours, and that of the stock optimizer at the big batch."""
    x, y = (array[:samples] for array in data())
    arguments = {"validation_data": (x[:5], y[:5]), "validation_batch_size": BIG, **arguments}
    recorders = []
    for length, size in ((LENGTH, MICRO), (None, BIG)):
        settings = {"learning_rate": 2**-5, **(dict(ours) if length else {})}
        make = hosts.ours if length else hosts.stock
        optimizer = make("Adam", **settings, **({"accum_iters": length} if length else {}))
        trained = compiled(model(), optimizer, metrics=["mae"])
        recorder = Recorder()
        callbacks = [*on_micro, accum.OnUpdates([recorder])] if length else [recorder]
        fit(trained, size, (x, y), callbacks=callbacks, **arguments)
        recorder.weights = weights(trained)
        recorders.append(recorder)
    return recorders


@pytest.mark.parametrize("gate", ["the window", pytest.param("PythonGate", marks=thorough)])
def test_calls_and_logs_are_those_of_the_big_batch(gate):
    on_micro = [accum.PythonGate()] if gate == "PythonGate" else []
    actual, expected = both(on_micro=on_micro)
    assert_calls(actual.calls, expected.calls)
    assert_equal(actual.weights, expected.weights)
    assert actual.params["steps"] == expected.params["steps"] == 3


@quick_first("samples", [2 * BIG + MICRO + 1, 2 * BIG + MICRO])
def test_a_short_window_at_the_end_of_each_epoch(samples):
    """Also with a short micro-batch, if its weight is told."""
    on_micro = [accum.MicroBatchWeights(), accum.ApplyPartialWindow()]
    ours = {"reduction": "weighted"}
    actual, expected = both(samples, on_micro=on_micro, ours=ours)
    assert_calls(actual.calls, expected.calls)
    assert_equal(actual.weights, expected.weights)
    assert actual.params["steps"] == expected.params["steps"] == 3


def record(samples=None, beside=(), after=(), compile=(), epochs=2, model=dense_model, **ours):
    """The calls for batches and epochs of a training of ours, without logs."""
    optimizer = hosts.ours("SGD", **{"accum_iters": LENGTH, **ours})
    model, recorder = compiled(model(), optimizer, **dict(compile)), Recorder()
    arrays = [array[:samples] for array in data()]
    callbacks = [*beside, accum.OnUpdates([recorder]), *after]
    fit(model, MICRO, arrays, epochs=epochs, callbacks=callbacks)
    return recorder, model


def short(recorder):
    """The calls as text: [ and ] around an epoch, < and > around an update, with its number."""
    signs = {"on_epoch_begin": "[", "on_epoch_end": "]"}
    signs.update(on_train_batch_begin="<{}", on_train_batch_end="{}>")
    return " ".join(signs[n].format(*number) for n, number, _ in recorder.calls if n in signs)


def test_a_window_that_goes_on_in_the_next_epoch():
    recorder, model = record((LENGTH + 2) * MICRO)
    assert short(recorder) == "[ <0 0> <1 ] [ 0> <1 1> ]"
    assert recorder.params["steps"] is None
    assert model.optimizer.completed_updates == 3
    again = Recorder()
    fit(model, MICRO, [a[: 5 * MICRO] for a in data()], callbacks=[accum.OnUpdates([again])])
    assert short(again) == "[ <0 0> <1 ] [ 0> <1 ] [ 0> <1 ]"


def test_windows_that_vary():
    schedule = accum.AccumulationSchedule({0: 1, 2: 3})
    recorder, _ = record(8 * MICRO, accum_iters=schedule, epochs=1)
    assert short(recorder) == "[ <0 0> <1 1> <2 2> <3 3> ]"
    assert recorder.params["steps"] is None
    by_epoch = accum.AccumulateByEpoch({0: 1, 1: 4})
    recorder, _ = record(4 * MICRO, beside=[by_epoch])
    assert short(recorder) == "[ <0 0> <1 1> <2 2> <3 3> ] [ <0 0> ]"
    assert recorder.params["steps"] is None


class ClosesAfter(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch in (0, 4):
            self.model.optimizer.apply_partial_window()


@pytest.mark.parametrize("place", ["beside", "after"])
def test_the_caller_closes_windows(place):
    """Also in a callback after OnUpdates, which sees the update at the next micro-batch."""
    recorder, _ = record(6 * MICRO, accum_iters=None, epochs=1, **{place: [ClosesAfter()]})
    assert short(recorder) == "[ <0 0> <1 1> <2 ]"
    assert recorder.params["steps"] is None


def test_without_accumulation():
    recorder, _ = record(2 * MICRO, accum_iters=1, epochs=1)
    assert short(recorder) == "[ <0 0> <1 1> ]"
    assert recorder.params["steps"] == 2


def test_a_dropped_micro_batch_is_no_update():
    recorder, _ = record(4 * MICRO, accum_iters=1, skip_norm=1e-9, epochs=1)
    assert short(recorder) == "[ <0 ]"


class OwnStep(keras.Model):
    """Logs the loss of the batch, and a metric that is a mean."""

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(2)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x):
        return self.out(x)

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, data):
        tf = hosts.tf
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.mean.update_state(loss)
        return {"of_batch": loss, "mean": self.mean.result()}


@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="a train step of TensorFlow")
def test_logs_of_ones_own_train_step():
    """A metric is that of the big batch; another value is that of the last micro-batch."""
    monitor = accum.AccumulationMonitor()

    x, y = data()
    recorders = []
    for make, size, more in ((hosts.ours, MICRO, {"accum_iters": LENGTH}), (hosts.stock, BIG, {})):
        made = OwnStep()
        made(x[:1])
        trained, recorder = compiled(made, make("SGD", learning_rate=2**-3, **more)), Recorder()
        callbacks = [monitor, accum.OnUpdates([recorder])] if more else [recorder]
        fit(trained, size, (x, y), callbacks=callbacks, epochs=2)
        recorders.append(recorder)
    ends = [[logs for n, _, logs in r.calls if n == "on_train_batch_end"] for r in recorders]
    actual, expected = ([logs["mean"] for logs in of_one] for of_one in ends)
    np.testing.assert_allclose(actual, expected, 2e-5)
    assert "of_batch" in ends[0][0]
    assert [logs["completed_updates"] for logs in ends[0]] == [1, 2, 3, 4, 5, 6]


# -- callbacks of Keras --------------------------------------------------------------------------


def on_both(train):
    """What `train(make, size, at)` returns for ours and for the stock optimizer at the big batch.

    `at` puts a callback where it belongs.
    """
    ours = train(
        lambda **more: hosts.ours("SGD", learning_rate=2**-3, accum_iters=LENGTH, **more),
        MICRO,
        lambda *callbacks: [accum.OnUpdates(callbacks)],
    )
    return ours, train(lambda **more: hosts.stock("SGD", learning_rate=2**-3), BIG, lambda *c: [*c])


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


class HalvesTheRate(keras.callbacks.Callback):
    """A schedule by step, as with the stock optimizer."""

    step = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 2.0**-3 / (1 + self.step)
        self.step += 1


@thorough
def test_a_learning_rate_by_step():
    def train(make, size, at):
        model = compiled(dense_model(), make())
        fit(model, size, callbacks=at(HalvesTheRate()))
        return weights(model)

    assert_equal(*on_both(train))


class Breaks(keras.callbacks.Callback):
    """Break off after the first update of the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1:
            raise KeyboardInterrupt


@thorough
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="refused on Keras 2")
def test_backup_and_restore_counts_updates(tmp_path):
    """The backups are those of updates 2 and 4; the training goes on from the second one."""

    def train(make, size, at):
        def backup():
            return keras.callbacks.BackupAndRestore(str(tmp_path / str(size)), save_freq=2)

        model = compiled(dense_model(), make())
        with pytest.raises(KeyboardInterrupt):
            fit(model, size, callbacks=at(backup(), Breaks()))
        model = compiled(dense_model(), make())
        history = fit(model, size, callbacks=at(backup()))
        assert len(history.epoch) == 2
        return weights(model)

    assert_equal(*on_both(train))


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


def test_a_callback_may_stop_the_training():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    model = compiled(dense_model(), hosts.ours("SGD", accum_iters=LENGTH))
    fit(model, MICRO, callbacks=[accum.OnUpdates([Stop()])])
    assert model.optimizer.completed_updates == 2


def test_evaluate_and_predict_outside_of_fit():
    recorder, model = Recorder(), compiled(dense_model(), hosts.ours("SGD", accum_iters=LENGTH))
    callback = accum.OnUpdates([recorder])
    x, y = data()
    model.evaluate(x, y, batch_size=BIG, verbose=0, callbacks=[callback])
    assert [name for name, _, _ in recorder.calls].count("on_test_batch_end") == 3
    assert recorder.model is model and recorder.params["steps"] == 3
    model.predict(x, batch_size=BIG, verbose=0, callbacks=[callback])
    names = [name for name, _, _ in recorder.calls]
    assert "on_predict_begin" in names and "on_predict_end" in names
    assert "on_train_batch_end" not in names


# -- what is refused -----------------------------------------------------------------------------


def test_what_is_no_list_of_callbacks():
    with pytest.raises(TypeError, match="`callbacks` must be a list"):
        accum.OnUpdates(Recorder())
    with pytest.raises(TypeError, match="and not their classes.*Received: <class"):
        accum.OnUpdates([Recorder])
    with pytest.raises(TypeError, match="PythonGate counts micro-batches.*beside OnUpdates"):
        accum.OnUpdates([accum.PythonGate()])
    with pytest.raises(TypeError, match="OnUpdates counts micro-batches"):
        accum.OnUpdates([accum.OnUpdates([])])


def test_apply_partial_window_comes_first():
    with pytest.raises(ValueError, match="ApplyPartialWindow must come before OnUpdates"):
        record(after=[accum.ApplyPartialWindow()])


def test_several_micro_batches_in_a_call():
    with pytest.raises(ValueError, match="steps_per_execution=4"):  # Keras's own on PyTorch
        record(compile={"steps_per_execution": 4})


def test_a_stock_optimizer():
    with pytest.raises(
        TypeError, match="OnUpdates needs a model that is compiled with an optimizer"
    ):
        model = compiled(dense_model(), hosts.stock("SGD"))
        fit(model, BIG, callbacks=[accum.OnUpdates([])])


def test_a_monitor_after_a_callback_inside():
    logger = accum.OnUpdates([keras.callbacks.EarlyStopping("gradient_norm", mode="min")])
    with pytest.warns(UserWarning) as said:
        record(beside=[logger, accum.AccumulationMonitor()])
    assert any("AccumulationMonitor is after OnUpdates" in str(one.message) for one in said)


@pytest.mark.skipif(hosts.IS_KERAS3, reason="their counts are Keras 2's own")
def test_callbacks_that_count_micro_batches_by_themselves(tmp_path):
    board, backup = keras.callbacks.TensorBoard, keras.callbacks.BackupAndRestore
    with pytest.raises(ValueError, match="TensorBoard can't be in OnUpdates.*update_freq=2"):
        accum.OnUpdates([board(str(tmp_path), update_freq=2)])
    with pytest.raises(ValueError, match="BackupAndRestore can't be in OnUpdates.*save_freq=2"):
        accum.OnUpdates([backup(str(tmp_path), save_freq=2)])
    accum.OnUpdates([board(str(tmp_path)), backup(str(tmp_path))])
