"""The optimizers for Keras 3, on its TensorFlow, JAX and PyTorch backends.

| file | holds |
| --- | --- |
| `optimizer` | the optimizer: its variables, and attributes that only Keras 3 has |
| `hooks` | overrides of what Keras calls in a train step and after it |
| `selection` | selects which writes of an update take effect |
| `backend` | the port of Keras 3, by `keras.ops` |
| `backend_<name>` | the port of a single backend |
| `state` | the part of the port for a state: variables and their names |
| `kept` | what other people's optimizers keep in other objects |
| `stock` | the part of the port for stock optimizers: arguments, conversion |
| `batch_normalization` | batch normalization that moves its statistics once per window |
| `statistics` | train steps that tell these layers when a window has closed |
| `in_backward_torch` | sums to which `backward` itself adds, on PyTorch |
| `masks` | the mask of a model's output |
| `slices` | train steps that take their batch in slices: the losses of a slice |
| `slices_<name>` | train steps in slices on a single backend |
"""

import importlib

from keras_accum import host

keras = host.import_keras_3()  # first, because its error is the clearest

from keras_accum import docs, family, names  # noqa: E402
from keras_accum.callbacks import (  # noqa: E402
    caveats,
    epochs,
    grow,
    in_backward,
    micro_batches,
    monitor,
    of_host,
    partial_window,
    python_gate,
    updates,
    weights,
    window_statistics,
)
from keras_accum.callbacks.base import introduce  # noqa: E402
from keras_accum.keras3 import masks, optimizer, statistics, stock  # noqa: E402
from keras_accum.keras3.batch_normalization import (  # noqa: E402
    WindowBatchNormalization,  # noqa: F401, public
    with_window_statistics,  # noqa: F401, public
)
from keras_accum.keras3.optimizer import AccumulatingOptimizer  # noqa: E402
from keras_accum.schedule import AccumulationSchedule  # noqa: E402, F401, public
from keras_accum.states import StateError  # noqa: E402, F401, public

_WRAPPERS = tuple(
    getattr(keras.optimizers, name)
    for name in ("LossScaleOptimizer", "MultiOptimizer")
    if hasattr(keras.optimizers, name)
)


def _check(optimizer_class):
    family.check_stock_class(optimizer_class, (keras.optimizers.Optimizer,), _WRAPPERS)
    return stock.class_of(optimizer_class)


def _register(cls, package):
    return keras.saving.register_keras_serializable(package=package)(cls)


def _make(stock_class, made_by=None, **more):
    return family.make((AccumulatingOptimizer,), stock_class, _register, __name__, made_by, **more)


accumulating = family.accumulating(
    __name__, docs.of_accumulating("keras3", "import keras", "Lion"), _check, _make
)

AMSGradAccumulate = _make(
    stock.class_of(keras.optimizers.Adam), name="AMSGradAccumulate", fixed={"amsgrad": True}
)
for _name in names.OPTIMIZERS:
    if hasattr(keras.optimizers, _name):
        globals()[f"{_name}Accumulate"] = accumulating(getattr(keras.optimizers, _name))

family.hand_on(keras.optimizers.LossScaleOptimizer)

_callback = of_host(keras, "keras3", "import keras")
_NNX = {"_traces_class": staticmethod(getattr(keras.config, "is_nnx_enabled", lambda: False))}
introduce(keras.callbacks.CallbackList)
caveats.watch(keras, keras.tree.flatten)

AccumulateInBackward = _callback(
    in_backward.AccumulateInBackward,
    _in_backward=getattr(optimizer.backend, "InBackward", None),
)
AccumulateByEpoch = _callback(epochs.AccumulateByEpoch)
ApplyPartialWindow = _callback(partial_window.ApplyPartialWindow)
AccumulationMonitor = _callback(monitor.AccumulationMonitor)
GrowWithNoiseScale = _callback(grow.GrowWithNoiseScale)
MicroBatches = _callback(
    micro_batches.MicroBatches,
    _models=keras.Model,
    _step_class=importlib.import_module(
        f"keras_accum.keras3.slices_{keras.backend.backend()}"
    ).Step,
    **_NNX,
)
OnUpdates = _callback(updates.OnUpdates, _kind=keras.callbacks.Callback, _models=keras.Model)
PythonGate = _callback(python_gate.PythonGate, _picker=optimizer.backend.Picker, **_NNX)
MicroBatchWeights = _callback(
    weights.MicroBatchWeights,
    _ops=keras.ops,
    _sum=staticmethod(keras.ops.sum),
    _flatten=staticmethod(keras.tree.flatten),
    _mask=staticmethod(masks.mask_of),
)
WindowStatistics = _callback(
    window_statistics.WindowStatistics, _step_class=statistics.Step, **_NNX
)

__getattr__ = names.fallback(__name__)
