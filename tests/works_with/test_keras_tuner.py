"""KerasTuner: `accum_iters` as a hyperparameter, and the best model loaded again."""

import hosts
import keras_tuner
import numpy as np
import pytest
from training import MICRO, compiled, data, dense_model

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="a tuner doesn't depend on the backend"),
]

LENGTHS = 2, 4
EPOCH = len(data()[0]) // MICRO


def build(hp):
    length = hp.Int("accum_iters", *LENGTHS, step=2)
    return compiled(dense_model(), hosts.ours("Adam", learning_rate=0.05, accum_iters=length))


@pytest.mark.row(
    "keras-tuner",
    "`accum_iters=hp.Int(...)`, `AccumulationMonitor` and `ApplyPartialWindow` in `search`",
    "each trial has its own windows; the best model and its optimizer load",
)
def test_search(tmp_path):
    x, y = data()
    tuner = keras_tuner.GridSearch(
        build, objective="val_loss", directory=str(tmp_path), project_name="trials"
    )
    callbacks = [
        hosts.accum.ApplyPartialWindow(),
        hosts.accum.AccumulationMonitor(),
    ]
    settings = {"batch_size": MICRO, "epochs": 2, "shuffle": False, "verbose": 0}
    tuner.search(x, y, validation_data=(x, y), callbacks=callbacks, **settings)

    trials = tuner.oracle.trials.values()
    for trial in trials:
        length = trial.hyperparameters.get("accum_iters")
        updates = trial.metrics.get_best_value("completed_updates")
        assert updates == 2 * EPOCH // length
    assert {trial.hyperparameters.get("accum_iters") for trial in trials} == {*LENGTHS}

    (best,), (model,) = tuner.get_best_hyperparameters(), tuner.get_best_models()
    (trial,) = tuner.oracle.get_best_trials()
    assert model.optimizer.accum_iters == best.get("accum_iters")
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), trial.score, rtol=1e-5)
    before = model.optimizer.completed_updates
    model.fit(x, y, batch_size=MICRO, verbose=0)
    assert model.optimizer.completed_updates == before + EPOCH // best.get("accum_iters")
