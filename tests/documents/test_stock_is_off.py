"""Runs with the big batch that are off, of docs/upstream/README.md: stock against stock."""

import hosts
import numpy as np
import pytest
from cases import thorough
from hosts import keras
from training import dense_model, initialize
from zoo import Batches, Interrupt

if not hosts.IS_KERAS3:
    pytest.skip("about Keras 3", allow_module_level=True)

random = np.random.RandomState(0)
X, Y = (random.uniform(0, 1, (200, n)).astype("float32") for n in (3, 2))
ALL = [(X[i : i + 50], Y[i : i + 50]) for i in range(0, 200, 50)]


def train(data=None, optimizer=None, build=False, **fit):
    model = initialize(dense_model())
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse")
    if build:
        model.optimizer.build(model.trainable_variables)
    arrays = {"x": X, "y": Y, "batch_size": 50} if data is None else {"x": data}
    model.fit(**arrays, shuffle=False, verbose=0, **{"epochs": 5, **fit})
    return model.get_weights()


def distance(some, others):
    return max(np.abs(a - b).max() for a, b in zip(some, others))


@thorough
@pytest.mark.skipif(hosts.IS_TENSORFLOW, reason="as on the page")
def test_workers_of_a_dataset():
    one, two = (train(Batches(ALL, workers=workers)) for workers in (1, 2))
    assert distance(one, train()) < 1e-6 < 1e-3 < distance(two, one)


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW, reason="as on the page")
def test_an_optimizer_that_is_not_built():
    if not hasattr(keras.optimizers, "ScheduleFreeAdamW"):
        pytest.skip("newer than this Keras")
    runs = [
        train(optimizer=keras.optimizers.ScheduleFreeAdamW(0.01), build=build, epochs=3)
        for build in (False, True)
    ]
    assert distance(*runs) > 1e-2


@thorough
@pytest.mark.skipif(hosts.BACKEND != "jax", reason="one backend is enough")
@pytest.mark.parametrize("save_freq, is_exact", [("epoch", True), (2, False)])
def test_a_backup_inside_of_an_epoch(save_freq, is_exact, tmp_path):
    def backup():
        return keras.callbacks.BackupAndRestore(str(tmp_path), save_freq=save_freq)

    with pytest.raises(KeyboardInterrupt):
        train(callbacks=[backup(), Interrupt(6)], epochs=3)
    again = distance(train(callbacks=[backup()], epochs=3), train(epochs=3))
    assert (again == 0) if is_exact else again > 1e-3
