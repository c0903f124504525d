"""What a type checker finds nothing in, but for marked lines. README's first lines are here."""
# pyright: standard, reportUnnecessaryTypeIgnoreComment=error
# ruff: noqa: E402, F401, I001 -- as users write scripts

import keras
import numpy as np
from keras_accum import AdamAccumulate

x, y = np.random.rand(1000, 20), np.random.rand(1000, 1)
model = keras.Sequential([keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=AdamAccumulate(1e-3, accum_iters=5), loss="mse")
model.fit(x, y, batch_size=10)  # trains as Adam with batch_size=50

from keras_accum import AccumulationSchedule, MicroBatches

schedule = AccumulationSchedule({0: 1, 100: 4})
optimizer = AdamAccumulate(1e-3, accum_iters=schedule, beta_1=0.8)
optimizer.apply_partial_window(5)  # pyright: ignore[reportCallIssue]
AdamAccumulate(gate="if")  # pyright: ignore[reportArgumentType]
updates: int = AdamAccumulate.from_optimizer(optimizer, accum_iters=5).completed_updates
callbacks = [MicroBatches(10)]
MicroBatches(batch_size=10)  # pyright: ignore[reportArgumentType]

from keras_accum import AdamAcumulate  # pyright: ignore[reportAttributeAccessIssue]
from keras_accum.keras3 import AMSGradAccumulate, RMSpropAccumulate, SGDAccumulate

SGDAccumulate(0.1, 0.9, True, accum_iters=5, clipnorm=1.0, reduction="sum")
SGDAccumulate(accum_iter=5)  # pyright: ignore[reportCallIssue]
RMSpropAccumulate(rho=0.8, learning_rate="0.1")  # pyright: ignore[reportArgumentType]
AMSGradAccumulate(amsgrad=True)  # pyright: ignore[reportCallIssue]
