"""Trackers of experiments: which steps and which learning rate they log."""

import hosts
import numpy as np
import pytest
from hosts import keras
from training import LENGTH, MICRO, WINDOWS, compiled, data, dense_model, fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="trackers don't depend on the backend"),
]

EPOCHS = 2
EPOCH = len(data()[0]) // MICRO  # micro-batches in an epoch
RATES = [0.5 ** (i + 1) for i in range(EPOCHS * WINDOWS)]  # of the updates


def model(learning_rate=0.05):
    optimizer = hosts.ours("Adam", learning_rate=learning_rate, accum_iters=LENGTH)
    return compiled(dense_model(), optimizer, run_eagerly=False)


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield mlflow
    mlflow.keras.autolog(disable=True)


def logged(mlflow, **arguments):
    """Return the run of one training, and the steps of its loss."""
    mlflow.keras.autolog(log_models=False, log_datasets=False, **arguments)
    trained = model()
    fit(trained, MICRO, epochs=EPOCHS, validation_data=data())
    mlflow.flush_async_logging()
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert trained.optimizer.completed_updates == EPOCHS * WINDOWS
    return run, [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]


@pytest.mark.row(
    "mlflow-skinny", "`mlflow.keras.autolog()`, by epochs", "logs `accum_iters` and the epochs"
)
def test_mlflow_by_epochs(mlflow):
    run, steps = logged(mlflow)
    assert run.data.params["optimizer_accum_iters"] == str(LENGTH)
    assert steps == list(range(EPOCHS))


@pytest.mark.row(
    "mlflow-skinny",
    "`mlflow.keras.autolog(log_every_epoch=False, log_every_n_steps=1)`",
    "logs each update once per micro-batch: see below",
)
def test_mlflow_by_steps(mlflow):
    _, steps = logged(mlflow, log_every_epoch=False, log_every_n_steps=1)
    micro_batches = np.arange(1, EPOCHS * EPOCH + 1)
    assert steps == list(micro_batches // LENGTH)


@pytest.mark.row(
    "mlflow-skinny",
    "`OnUpdates([mlflow.keras.MlflowCallback(log_every_epoch=False, log_every_n_steps=1)])`",
    "logs each update once, with the logs of the big batch",
)
def test_mlflow_on_updates(mlflow):
    by_updates = mlflow.keras.MlflowCallback(log_every_epoch=False, log_every_n_steps=1)
    trained = model()
    with mlflow.start_run() as run:
        fit(trained, MICRO, epochs=EPOCHS, callbacks=[hosts.accum.OnUpdates([by_updates])])
    mlflow.flush_async_logging()
    losses = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in losses] == list(range(1, EPOCHS * WINDOWS + 1))

    big, expected = compiled(dense_model(), hosts.stock("Adam", learning_rate=0.05)), []
    each = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: expected.append(logs["loss"])
    )
    fit(big, MICRO * LENGTH, epochs=EPOCHS, callbacks=[each])
    np.testing.assert_allclose([metric.value for metric in losses], expected)


@pytest.mark.row(
    "wandb",
    '`WandbMetricsLogger(log_freq="batch")`, offline, with a schedule',
    "steps are micro-batches; the learning rate is that of the next update",
)
def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    run = wandb.init(mode="offline", dir=str(tmp_path), settings={"console": "off"})
    logs = []
    monkeypatch.setattr(wandb, "log", logs.append)
    from wandb.integration.keras import WandbMetricsLogger

    trained = model(hosts.EachUpdate([*RATES, 0.0]))
    fit(trained, MICRO, epochs=EPOCHS, callbacks=[WandbMetricsLogger(log_freq="batch")])
    run.finish()
    batches = [log for log in logs if "batch/batch_step" in log]
    assert [log["batch/batch_step"] for log in batches] == list(range(EPOCHS * EPOCH))
    after = np.arange(1, EPOCHS * EPOCH + 1) // LENGTH
    expected = [RATES[updates] for updates in after[:-1]]
    np.testing.assert_allclose([log["batch/learning_rate"] for log in batches[:-1]], expected)
