"""What mypy and basedpyright find nothing in, but for marked lines. README's lines are here."""
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
optimizer.apply_partial_window(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
AdamAccumulate(gate="if")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
updates: int = AdamAccumulate.from_optimizer(optimizer, accum_iters=5).completed_updates
callbacks = [MicroBatches(10)]
MicroBatches(batch_size=10)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

from keras_accum import AdamAcumulate  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
from keras_accum.keras3 import AMSGradAccumulate, RMSpropAccumulate, SGDAccumulate

SGDAccumulate(0.1, 0.9, True, accum_iters=5, clipnorm=1.0, reduction="sum")
SGDAccumulate(accum_iter=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
RMSpropAccumulate(rho=0.8, learning_rate="0.1")  # pyright: ignore[reportArgumentType]
AMSGradAccumulate(amsgrad=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def on_tf_keras() -> None:
    from keras_accum.tf_keras import AdamAccumulate

    AdamAccumulate(1e-3, accum_iters=5)


def on_keras_2() -> None:
    from keras_accum.keras2 import AdamAccumulate

    AdamAccumulate(1e-3, accum_iters=5)
