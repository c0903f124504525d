"""Optimizers and callbacks for Keras 3 on TensorFlow, JAX and PyTorch.

`optimizers` has the public classes, and `hooks` the methods that Keras calls. `values`,
`store` and `update` are parts of its engine, and `tensorflow`, `jax` and `torch` adapt them.
`micro_batches` has the callback `MicroBatches`.
"""

from typing import TYPE_CHECKING

from keras_accum import host, where_else
from keras_accum.host import patches

keras = host.import_keras("keras3")  # first, because its error is the clearest

import numpy as np  # noqa: E402

from keras_accum.callbacks import (  # noqa: E402
    accumulation_monitor,
    apply_partial_window,
    micro_batch_weights,
    on_updates,
    together,
)
from keras_accum.callbacks.base import normalizes_batches, torch_modules  # noqa: E402
from keras_accum.callbacks.library import Library  # noqa: E402
from keras_accum.compare import Comparison, compare_with_big_batch  # noqa: E402
from keras_accum.engine.state import StateError  # noqa: E402
from keras_accum.host import AccumulationWarning  # noqa: E402
from keras_accum.keras3 import micro_batches, optimizers  # noqa: E402
from keras_accum.keras3.micro_batches.of_keras import get_mask, set_mask  # noqa: E402
from keras_accum.keras3.optimizers import *  # noqa: E402, F403
from keras_accum.keras3.store import Keras3Store  # noqa: E402
from keras_accum.schedule import AccumulationSchedule  # noqa: E402

IS_TORCH = keras.backend.backend() == "torch"


def _list_penalized(model):
    return [w for w in model.trainable_weights if w.regularizer is not None]


class _Library(Library):
    """Keras 3 as the callbacks see it."""

    name, keras, ops, scale_name = "keras3", keras, keras.ops, "dynamic_scale"
    is_traced = not IS_TORCH
    get_mask, set_mask = staticmethod(get_mask), staticmethod(set_mask)
    flatten, read = staticmethod(keras.tree.flatten), staticmethod(Keras3Store.read)

    def find_losses(self, model):
        def replace(item, function):
            return item._replace(loss=function(item.loss))

        host.check_members(keras, model, ["_compile_loss"])
        return model._compile_loss, "_flat_losses", replace

    def loss_metrics(self, model):
        found = [m for m in model.metrics if m.name == "loss" and type(m) is keras.metrics.Mean]
        container = self.find_losses(model)[0]
        return [*found[:1], *(() if container is None else container.metrics)]

    def find_process_group(self, model):
        if IS_TORCH and host.parse_version(keras.__version__) >= (3, 16):
            host.check_members(keras, model, ["ddp_model"])
        wrapper = getattr(model, "ddp_model", None)
        return None if wrapper is None else wrapper.process_group

    def make_sum_loss(self, dtype):
        return keras.losses.Loss(reduction="sum", dtype=dtype)

    def added_losses(self, model):
        return len(model.losses) - len(_list_penalized(model))

    def has_penalties(self, model):
        return bool(_list_penalized(model))

    def list_kept(self, layer):
        kept = list(super().list_kept(layer))
        for module in torch_modules(layer):
            kept += module.buffers(recurse=False)
            if normalizes_batches(module) and module.running_mean is None:
                kept.append(np.nan)  # never equal to itself: it always uses the batch's moments
        return kept

    def hides_train_steps(self):
        # Keras 3.10 has no NNX mode.
        return getattr(keras.config, "is_nnx_enabled", lambda: False)()


LIBRARY = _Library()
host.check_members(keras, keras.Model, ["_flatten_layers"])  # called in the callbacks

if keras.backend.backend() == "jax":
    from keras_accum.keras3.jax import HOOKS
else:
    from keras_accum.keras3.hooks import HOOKS
patches.plan(LIBRARY.name, together.look_at_trainings(LIBRARY), *HOOKS)

AccumulationMonitor = LIBRARY.callback(accumulation_monitor.AccumulationMonitor)
ApplyPartialWindow = LIBRARY.callback(apply_partial_window.ApplyPartialWindow)
MicroBatches = LIBRARY.callback(micro_batches.MicroBatches)
MicroBatchWeights = LIBRARY.callback(micro_batch_weights.MicroBatchWeights)
OnUpdates = LIBRARY.callback(on_updates.OnUpdates)

__all__ = [  # written out for type checkers; the tests compare it with `WHERE`
    "AccumulationMonitor",
    "AccumulationSchedule",
    "AccumulationWarning",
    "ApplyPartialWindow",
    "Comparison",
    "MicroBatches",
    "MicroBatchWeights",
    "OnUpdates",
    "StateError",
    "compare_with_big_batch",
]
__all__ += optimizers.__all__
if not TYPE_CHECKING:  # with it, checkers would accept any name
    __getattr__ = where_else(__name__)


def __dir__():
    return __all__
