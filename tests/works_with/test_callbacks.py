"""Orbax's callback, which counts batches: what it sees of an accumulation."""

import hosts
import numpy as np
import pytest
from hosts import keras
from training import MICRO, compiled, data, dense_model, fit

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="callbacks don't depend on the backend"),
]

EPOCH = len(data()[0]) // MICRO
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
