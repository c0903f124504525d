"""Files for predictions, for training without keras_accum, and for TensorFlow Serving."""

import keras
import numpy as np

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = (random.uniform(0.5, 1, (100, n)).astype("float32") for n in (8, 2))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
model.compile(AdamAccumulate(1e-3, accum_iters=5), loss="mse")
model.fit(x, y, batch_size=10)
model.save("trained.keras")

# For predictions, a process needs no optimizer, and not this package.
served = keras.models.load_model("trained.keras", compile=False)

# To train on where this package isn't installed.
model.compile(model.optimizer.to_stock(), loss="mse")
model.save("stock.keras")

# For TensorFlow Serving, TensorFlow Lite and other programs.
model.export("exported")
