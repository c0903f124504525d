"""Train a new head on a frozen network, then everything, with one optimizer. Not on JAX."""

import keras
import numpy as np

from keras_accum import AdamWAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = (random.uniform(0.5, 1, (120, n)).astype("float32") for n in (8, 2))

backbone = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh")])
model = keras.Sequential([keras.Input((8,)), backbone, keras.layers.Dense(2)])
optimizer = AdamWAccumulate(1e-3, accum_iters=5)
optimizer.build(model.trainable_variables)  # before a layer is frozen

backbone.trainable = False
model.compile(optimizer, loss="mse")
model.fit(x, y, batch_size=10, epochs=2, shuffle=False)

# Windows end with the epoch: no gradient is left for the next stage.
backbone.trainable = True
optimizer.learning_rate = 1e-4
model.compile(optimizer, loss="mse")  # traces the train step with all layers
model.fit(x, y, batch_size=10, epochs=2, shuffle=False)
