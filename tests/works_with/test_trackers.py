"""MLflow's callback logs updates through `OnUpdates`."""

import hosts
import numpy as np
import pytest
from hosts import keras
from training import LENGTH, MICRO, WINDOWS, compiled, dense_model, fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="trackers don't depend on the backend"),
]

EPOCHS = 2


@pytest.mark.row(
    "mlflow-skinny",
    "`OnUpdates([mlflow.keras.MlflowCallback(log_every_epoch=False, log_every_n_steps=1)])`",
    "logs each update once, with the logs of the big batch",
)
def test_mlflow_on_updates(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    by_updates = mlflow.keras.MlflowCallback(log_every_epoch=False, log_every_n_steps=1)
    ours = hosts.ours("Adam", learning_rate=0.05, accum_iters=LENGTH)
    trained = compiled(dense_model(), ours, run_eagerly=False)
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
