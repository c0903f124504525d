"""Keras's own callbacks that count batches or write files: what they see of an accumulation."""

import hosts
import numpy as np
import pytest
from hosts import keras
from training import MICRO, compiled, data, dense_model, fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="callbacks don't depend on the backend"),
]

LENGTH = 5  # not a divisor of an epoch's micro-batches, so that epochs end inside a window
EPOCH = len(data()[0]) // MICRO
EVERY = 2


def model(accum_iters=LENGTH):
    optimizer = hosts.ours("Adam", learning_rate=0.05, accum_iters=accum_iters)
    return compiled(dense_model(), optimizer, run_eagerly=False)


def assert_continued(model):
    """A training that was continued after its first epoch ends where two epochs in one go do."""
    whole = compiled(dense_model(), model.optimizer.from_config(model.optimizer.get_config()))
    fit(whole, MICRO, epochs=2)
    assert whole.optimizer.completed_updates == 2 * EPOCH // LENGTH
    for ours, theirs in zip(everything(model), everything(whole)):
        np.testing.assert_allclose(ours, theirs, **hosts.TOLERANCE)


def everything(model):
    return [hosts.array(v) for v in (*model.variables, *model.optimizer.variables)]


def orbax(folder, save_freq):
    return keras.callbacks.OrbaxCheckpoint(
        str(folder), save_freq=save_freq, max_to_keep=None, save_on_background=False
    )


def saved(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


@pytest.mark.row(
    "orbax-checkpoint",
    '`OrbaxCheckpoint(save_freq="epoch")`, and `load_model` of what it saved',
    "saves each epoch; Keras 3.15.1 loads a `Sequential` without its weights, also with Adam",
)
@pytest.mark.parametrize("ours", [True, False])
def test_orbax_by_epochs(tmp_path, ours):
    trained = model() if ours else compiled(dense_model(), "adam", run_eagerly=False)
    for epoch in range(2):
        by_epochs = [orbax(tmp_path, "epoch")]
        fit(trained, MICRO, initial_epoch=epoch, epochs=epoch + 1, callbacks=by_epochs)
    assert saved(tmp_path) == [0, 1]
    loaded = keras.models.load_model(str(tmp_path))
    assert int(loaded.optimizer.iterations) == int(trained.optimizer.iterations)
    weights = zip(trained.get_weights(), loaded.get_weights())
    assert not any(np.array_equal(a, b) for a, b in weights)


@pytest.mark.row(
    "orbax-checkpoint",
    "`OrbaxCheckpoint` with an integer `save_freq`, continued in the same folder",
    "**skips saves without an error, or fails**: see below",
)
@pytest.mark.parametrize("accum_iters", [4, 5])
def test_orbax_by_batches(tmp_path, accum_iters):
    """The callback counts batches, and begins a `fit` at `optimizer.iterations`."""
    trained = model(accum_iters)
    fit(trained, MICRO, epochs=1, callbacks=[orbax(tmp_path, EVERY)])
    first = saved(tmp_path)
    assert first == list(range(EVERY, EPOCH + 1, EVERY))
    counted = trained.optimizer.completed_updates + np.arange(EVERY, EPOCH + 1, EVERY)
    if counted[0] in first:
        with pytest.raises(Exception, match=f"Step {counted[0]} already exists"):
            fit(trained, MICRO, epochs=1, callbacks=[orbax(tmp_path, EVERY)])
    else:
        fit(trained, MICRO, epochs=1, callbacks=[orbax(tmp_path, EVERY)])
        assert saved(tmp_path) == [*first, *counted[counted > EPOCH]]
        assert len(saved(tmp_path)) < 2 * len(first)


@pytest.mark.row(
    "orbax-checkpoint",
    "`OnUpdates([OrbaxCheckpoint(...)])` with an integer `save_freq`, continued in the same folder",
    "numbers the files by updates, and saves all of them",
)
def test_orbax_on_updates(tmp_path):
    trained = model(accum_iters=2)
    for _ in range(2):
        fit(trained, MICRO, epochs=1, callbacks=[hosts.accum.OnUpdates([orbax(tmp_path, EVERY)])])
    assert trained.optimizer.completed_updates == EPOCH
    assert saved(tmp_path) == list(range(EVERY, EPOCH + 1, EVERY))


@pytest.mark.row("keras", "`BackupAndRestore`, interrupted inside a window", "continues exactly")
def test_backup(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    folder = str(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        backup = keras.callbacks.BackupAndRestore(folder)
        fit(model(), MICRO, epochs=2, callbacks=[backup, Interrupt()])
    restored = model()
    history = fit(restored, MICRO, epochs=2, callbacks=[keras.callbacks.BackupAndRestore(folder)])
    assert history.epoch == [1]
    assert_continued(restored)


@pytest.mark.row(
    "tensorboard",
    "`TensorBoard(update_freq=2)`: its event files",
    "steps of batches are micro-batches; `evaluation_..._vs_iterations` counts updates",
)
def test_tensorboard(tmp_path):
    import tensorflow as tf

    board = keras.callbacks.TensorBoard(str(tmp_path), write_graph=False, update_freq=EVERY)
    trained = model()
    monitor = hosts.accum.AccumulationMonitor()
    fit(trained, MICRO, epochs=2, validation_data=data(), callbacks=[monitor, board])
    steps = {}
    for path in tmp_path.glob("*/events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    assert steps["batch_loss"] == list(range(EVERY, 2 * EPOCH + 1, EVERY))
    assert steps["evaluation_loss_vs_iterations"] == [EPOCH // LENGTH, 2 * EPOCH // LENGTH]
    assert steps["epoch_completed_updates"] == [0, 1]
