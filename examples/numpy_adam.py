"""Who is right? Adam in NumPy, as a judge between two trainings that differ.

The model is linear, so its gradient is one line. Replace `AdamAccumulate(...)` and `batch_size=10`
by `keras.optimizers.Adam(0.01)` and `batch_size=50` to judge the stock optimizer.
"""

import keras
import numpy as np

from keras_accum import AdamAccumulate

random = np.random.RandomState(0)
x, y = random.rand(100, 3), random.rand(100, 1)
inputs = keras.layers.Input((3,))
model = keras.models.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
w = model.get_weights()[0].astype("float64")

model.compile(AdamAccumulate(0.01, accum_iters=5), loss="mse")
model.fit(x, y, batch_size=10, epochs=20, shuffle=False, verbose=0)

m = v = np.zeros_like(w)
for t in range(1, 41):  # two updates in each epoch
    big_batch = slice(50, 100) if t % 2 == 0 else slice(0, 50)
    error = x[big_batch].dot(w) - y[big_batch]
    g = 2 / 50 * x[big_batch].T.dot(error)
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g**2
    rate = 0.01 * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t)
    w = w - rate * m / (v**0.5 + 1e-7)

difference = abs(model.get_weights()[0] - w).max()
print("difference from Adam in NumPy: %.0e" % difference)
