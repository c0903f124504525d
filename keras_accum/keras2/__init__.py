"""The optimizers for standalone Keras 2.2 and 2.3 on TensorFlow 1.

Each class is the stock optimizer of its name with a new `get_updates`, which hands the gradients to
the engine (`accumulation`), also with `accum_iters=1`. In an update, SGD, Adam and RMSprop run
their rule with gated scalars (see `rules`). All other classes run the stock `get_updates` and
select its writes.

| file | holds |
| --- | --- |
| `optimizer` | the optimizer: its train step and its learning rate |
| `port` | what this Keras does for the engine: variables, an update, the order of all writes |
| `recording` | runs the stock `get_updates` and records its writes |
| `state` | the part of the port for arguments and state: slots and their names, conversion |
| `stock` | what stock optimizers take, and what they start from |
"""

import math

from keras_accum import host

keras = host.import_standalone_keras_2()  # first, because its error is the clearest

from keras_accum import docs, family, names  # noqa: E402
from keras_accum.callbacks import epochs, of_host, partial_window  # noqa: E402
from keras_accum.keras2.optimizer import AccumulatingOptimizer  # noqa: E402
from keras_accum.schedule import AccumulationSchedule  # noqa: E402, F401, public
from keras_accum.states import StateError  # noqa: E402, F401, public

_stock = keras.optimizers


def _register(cls, package):
    """Register a class by its name, so that files load without `custom_objects`."""
    known, stock_class = keras.utils.get_custom_objects(), cls._stock_class
    earlier = getattr(known.get(cls.__name__), "_stock_class", stock_class)
    # A class that is defined again, as in a notebook, replaces the earlier class.
    if (earlier.__module__, earlier.__qualname__) != (
        stock_class.__module__,
        stock_class.__qualname__,
    ):
        raise TypeError(
            f"{cls.__name__} already belongs to {earlier.__module__}.{earlier.__qualname__}, and "
            "this Keras finds classes by their names alone: give the class a different name. "
            f"Received: optimizer_class={stock_class}"
        )
    known[cls.__name__] = cls
    return cls


def _check(optimizer_class):
    family.check_stock_class(optimizer_class, (_stock.Optimizer,), (_stock.TFOptimizer,))
    return optimizer_class


def _make(stock_class, made_by=None, **more):
    return family.make((AccumulatingOptimizer,), stock_class, _register, __name__, made_by, **more)


accumulating = family.accumulating(
    __name__, docs.of_accumulating("keras2", "import keras", "Nadam"), _check, _make
)

AMSGradAccumulate = _make(_stock.Adam, name="AMSGradAccumulate", fixed={"amsgrad": True})
for _name in names.OPTIMIZERS:
    if hasattr(_stock, _name):
        globals()[f"{_name}Accumulate"] = accumulating(getattr(_stock, _name))


def _on_batch_end(callback, batch, logs=None):
    # Keras 2.2 validates before it calls `on_epoch_end`, and has no `on_test_begin`.
    steps = callback.params["steps"]
    if not steps:
        steps = math.ceil(callback.params["samples"] / callback.params["batch_size"])
    if batch + 1 == steps:
        callback._close()


_callback = of_host(keras, "keras2", "import keras")
AccumulateByEpoch = _callback(epochs.AccumulateByEpoch)
ApplyPartialWindow = _callback(partial_window.ApplyPartialWindow, on_batch_end=_on_batch_end)

__getattr__ = names.fallback(__name__)
