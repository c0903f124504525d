"""Optimizers and callbacks for Keras 3 on TensorFlow, JAX and PyTorch.

`optimizers` has the public classes, and `overrides` the methods that Keras calls. `values`,
`store` and `update` are parts of its engine, and `tensorflow`, `jax` and `torch` adapt them.
`micro_batches` has the callback `MicroBatches`.
"""
# ruff: noqa: F405 -- `__all__` has the names of imports by *

from typing import TYPE_CHECKING

from keras_accum import host, where_else
from keras_accum.host import patches

keras = host.import_keras("keras3")  # first, because its error is the clearest

from keras_accum.callbacks import (  # noqa: E402
    accumulation_monitor,
    apply_partial_window,
    micro_batch_weights,
    on_updates,
)
from keras_accum.compare import Comparison, compare_with_big_batch  # noqa: E402
from keras_accum.engine.state import StateError  # noqa: E402
from keras_accum.fit.training import look_at_trainings  # noqa: E402
from keras_accum.fit.weighing import look_at_train_on_batch  # noqa: E402
from keras_accum.host import AccumulationWarning  # noqa: E402
from keras_accum.keras3 import micro_batches, optimizers  # noqa: E402
from keras_accum.keras3.host import HOST  # noqa: E402
from keras_accum.keras3.optimizers import *  # noqa: E402, F403
from keras_accum.schedule import AccumulationSchedule  # noqa: E402

if keras.backend.backend() == "jax":
    from keras_accum.keras3.jax import PATCHES
else:
    from keras_accum.keras3.overrides import PATCHES
patches.plan(HOST.name, look_at_trainings(HOST), look_at_train_on_batch(HOST), *PATCHES)

AccumulationMonitor = HOST.callback(accumulation_monitor.AccumulationMonitor)
ApplyPartialWindow = HOST.callback(apply_partial_window.ApplyPartialWindow)
MicroBatches = HOST.callback(micro_batches.MicroBatches)
MicroBatchWeights = HOST.callback(micro_batch_weights.MicroBatchWeights)
OnUpdates = HOST.callback(on_updates.OnUpdates)

__all__ = [  # literals for type checkers; test_project.py compares them with `WHERE`
    "AccumulationMonitor",
    "AccumulationSchedule",
    "AccumulationWarning",
    "AdadeltaAccumulate",
    "AdafactorAccumulate",
    "AdagradAccumulate",
    "AdamAccumulate",
    "AdamaxAccumulate",
    "AdamWAccumulate",
    "AMSGradAccumulate",
    "ApplyPartialWindow",
    "Comparison",
    "FtrlAccumulate",
    "LambAccumulate",
    "LionAccumulate",
    "MicroBatches",
    "MicroBatchWeights",
    "MuonAccumulate",
    "NadamAccumulate",
    "OnUpdates",
    "RMSpropAccumulate",
    "SGDAccumulate",
    "StateError",
    "accumulating",
    "compare_with_big_batch",
]
if hasattr(optimizers, "ScheduleFreeAdamWAccumulate"):  # newer than Keras 3.10
    __all__ += ["ScheduleFreeAdamWAccumulate"]
if not TYPE_CHECKING:  # with it, checkers would accept any name
    __getattr__ = where_else(__name__)


def __dir__():
    return __all__
