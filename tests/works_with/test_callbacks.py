"""Callbacks of Orbax and of trackers, and a tuner: what they see of an accumulation."""

import hosts
import numpy as np
import pytest
from hosts import keras
from training import LENGTH, MICRO, compiled, data, dense_model, fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="callbacks don't depend on the backend"),
]

EPOCH = len(data()[0]) // MICRO
UPDATES = 2 * EPOCH // LENGTH
EVERY = 2


def model(accum_iters):
    optimizer = hosts.ours("Adam", learning_rate=0.05, accum_iters=accum_iters)
    return compiled(dense_model(), optimizer, run_eagerly=False)


def orbax(folder):
    return keras.callbacks.OrbaxCheckpoint(
        str(folder), save_freq=EVERY, max_to_keep=None, save_on_background=False
    )


def saved(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


@pytest.mark.row(
    "orbax-checkpoint",
    "`OrbaxCheckpoint` with an integer as `save_freq`, training continued in the same folder",
    "**skips saves and says nothing, or fails**: see below",
)
@pytest.mark.parametrize("accum_iters", [4, 5])
def test_orbax_by_batches(tmp_path, accum_iters):
    """The callback counts batches, and begins a `fit` at `optimizer.iterations`."""
    trained = model(accum_iters)
    fit(trained, MICRO, epochs=1, callbacks=[orbax(tmp_path)])
    first = saved(tmp_path)
    assert first == list(range(EVERY, EPOCH + 1, EVERY))
    counted = trained.optimizer.completed_updates + np.arange(EVERY, EPOCH + 1, EVERY)
    if counted[0] in first:
        with pytest.raises(Exception, match=f"Step {counted[0]} already exists"):
            fit(trained, MICRO, epochs=1, callbacks=[orbax(tmp_path)])
    else:
        fit(trained, MICRO, epochs=1, callbacks=[orbax(tmp_path)])
        assert saved(tmp_path) == [*first, *counted[counted > EPOCH]]
        assert len(saved(tmp_path)) < 2 * len(first)


@pytest.mark.row(
    "orbax-checkpoint",
    "`OnUpdates([OrbaxCheckpoint(...)])` with an integer as `save_freq`, training continued in the "
    "same folder",
    "numbers the files by updates, and saves all of them",
)
def test_orbax_on_updates(tmp_path):
    trained = model(accum_iters=2)
    for _ in range(2):
        fit(trained, MICRO, epochs=1, callbacks=[hosts.accum.OnUpdates([orbax(tmp_path)])])
    assert trained.optimizer.completed_updates == EPOCH
    assert saved(tmp_path) == list(range(EVERY, EPOCH + 1, EVERY))


@pytest.mark.row(
    "tensorboard",
    "`TensorBoard(update_freq=2)`, and the same in `OnUpdates`: its event files",
    "counts micro-batches, and in `OnUpdates` updates; `evaluation_..._vs_iterations` has updates",
)
@pytest.mark.parametrize("on_updates", [True, False])
def test_tensorboard(tmp_path, on_updates):
    board = keras.callbacks.TensorBoard(str(tmp_path), write_graph=False, update_freq=EVERY)
    callback = hosts.accum.OnUpdates([board]) if on_updates else board
    trained = model(accum_iters=2)
    fit(trained, MICRO, epochs=2, validation_data=data(), callbacks=[callback])
    steps = {}
    for path in tmp_path.glob("*/events*"):
        for event in hosts.tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    counted = 2 * EPOCH // (2 if on_updates else 1)
    assert steps["batch_loss"] == list(range(EVERY, counted + 1, EVERY))
    assert steps["evaluation_loss_vs_iterations"] == [EPOCH // 2, EPOCH]


# -- trackers --------------------------------------------------------------------------------------


def assert_losses_of_big_batches(losses):
    big, expected = compiled(dense_model(), hosts.stock("Adam", learning_rate=0.05)), []
    each = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: expected.append(logs["loss"])
    )
    fit(big, MICRO * LENGTH, epochs=2, callbacks=[each])
    np.testing.assert_allclose(losses, expected)


@pytest.mark.row(
    "mlflow-skinny",
    "`OnUpdates([mlflow.keras.MlflowCallback(log_every_epoch=False, log_every_n_steps=1)])`",
    "logs each update once, with the logs of the big batch",
)
def test_mlflow_on_updates(tmp_path, monkeypatch):
    """Each update is logged once."""
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    by_updates = mlflow.keras.MlflowCallback(log_every_epoch=False, log_every_n_steps=1)
    with mlflow.start_run() as run:
        fit(model(LENGTH), MICRO, epochs=2, callbacks=[hosts.accum.OnUpdates([by_updates])])
    mlflow.flush_async_logging()
    losses = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in losses] == list(range(1, UPDATES + 1))
    assert_losses_of_big_batches([metric.value for metric in losses])


@pytest.mark.row(
    "wandb",
    '`OnUpdates([WandbMetricsLogger(log_freq="batch")])`, offline',
    "logs each update once, with the logs of the big batch",
)
def test_wandb_on_updates(tmp_path, monkeypatch):
    import wandb
    from wandb.integration.keras import WandbMetricsLogger

    run, logs = wandb.init(mode="offline", dir=str(tmp_path)), []
    monkeypatch.setattr(wandb, "log", logs.append)
    by_updates = WandbMetricsLogger(log_freq="batch")
    fit(model(LENGTH), MICRO, epochs=2, callbacks=[hosts.accum.OnUpdates([by_updates])])
    run.finish()
    logs = [log for log in logs if "batch/batch_step" in log]
    assert [log["batch/batch_step"] for log in logs] == list(range(UPDATES))
    assert_losses_of_big_batches([log["batch/loss"] for log in logs])


@pytest.mark.row(
    "keras-tuner",
    "`accum_iters=hp.Int(...)` and `ApplyPartialWindow` in `search`",
    "each trial has its own windows; the best model loads",
)
def test_search(tmp_path):
    """Each trial has its own windows."""
    import keras_tuner

    def build(hp):
        return model(hp.Int("accum_iters", 2, 4, step=2))

    tuner = keras_tuner.GridSearch(build, objective="val_loss", directory=str(tmp_path))
    callbacks = [hosts.accum.ApplyPartialWindow(), hosts.accum.AccumulationMonitor()]
    settings = {"batch_size": MICRO, "epochs": 2, "callbacks": callbacks, "verbose": 0}
    tuner.search(*data(), validation_data=data(), **settings)
    for trial in tuner.oracle.trials.values():
        updates = trial.metrics.get_best_value("completed_updates")
        assert updates == 2 * EPOCH // trial.hyperparameters.get("accum_iters")
    (trial,), (best,) = tuner.oracle.get_best_trials(), tuner.get_best_models()
    assert best.optimizer.accum_iters == trial.hyperparameters.get("accum_iters")
    np.testing.assert_allclose(best.evaluate(*data(), verbose=0), trial.score, rtol=1e-5)
