"""Start this again after it was killed: it continues after the last epoch that ended."""

import keras
import numpy as np

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = (random.uniform(0.5, 1, (120, n)).astype("float32") for n in (8, 2))

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
model.compile(AdamAccumulate(1e-3, accum_iters=5), loss="mse")
backup = keras.callbacks.BackupAndRestore("backup")  # a folder, emptied at the end of a training
# The data must come in the same order again: with `shuffle=True`, an epoch draws another order.
model.fit(x, y, batch_size=10, epochs=4, shuffle=False, callbacks=[backup])
print(f"{model.optimizer.completed_updates} updates")
