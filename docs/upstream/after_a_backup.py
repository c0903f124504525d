"""After `BackupAndRestore` has resumed a training, each later `fit` of the model skips epochs.

Keras 3.15: the callback sets `model._initial_epoch`, which `fit` prefers to its own argument
`initial_epoch`. Nothing resets it, so the next `fit` starts at the epoch of the backup, too.
"""

import os
import tempfile

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

ones = np.ones((4, 1))


class StopInSecondEpoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def fit(model, *callbacks):
    return model.fit(ones, ones, epochs=2, verbose=0, callbacks=callbacks).epoch


model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
with tempfile.TemporaryDirectory() as folder:
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    try:
        fit(model, StopInSecondEpoch(), backup)
    except KeyboardInterrupt:
        pass
    resumed = fit(model, backup)
later = fit(model)
print("epochs of the resumed training:", resumed, "of a later one:", later)
assert resumed == [1] and later == [0, 1], "a later training skips epochs"
