"""The optimizers for Keras 3, on its TensorFlow, JAX and PyTorch backends.

| file | holds |
| --- | --- |
| `optimizer` | the optimizer: arguments and config |
| `hooks` | overrides of what Keras calls in a train step and after it |
| `selection` | selects which writes of an update take effect |
| `backend` | the port of Keras 3, by `keras.ops` |
| `backend_<name>` | the port of a single backend |
| `variables` | the names of all variables in a state |
| `kept` | what other people's optimizers keep in other objects |
| `state` | the state: read, written, loaded and counted |
| `stock` | conversion from and to stock optimizers |
"""

from keras_accum import docs, family, host, names, ranges
from keras_accum.schedule import AccumulationSchedule  # noqa: F401, public
from keras_accum.states import StateError  # noqa: F401, public

keras = host.import_keras_3()

from keras_accum.callbacks import (  # noqa: E402, the line above raises the clearer error
    epochs,
    monitor,
    of_host,
    partial_window,
    python_gate,
    weights,
)
from keras_accum.keras3 import optimizer, stock  # noqa: E402
from keras_accum.keras3.optimizer import AccumulatingOptimizer  # noqa: E402

_made = {}


def accumulating(optimizer_class):
    """Return a subclass of an optimizer class that makes one update per window of micro-batches.

    An update runs the code of `optimizer_class` on the average gradient of a window. The returned
    class takes the arguments of `optimizer_class` in their order, plus the keyword arguments of all
    classes of this package: `accum_iters`, `reduction`, `skip_nonfinite`, `skip_norm`,
    `window_transforms`, `gate`, `all_reduce`, `lr` and `decay`; see `AdamAccumulate`.

    Args:
        optimizer_class: A class of optimizers: a class of Keras, for example
            `keras.optimizers.Lion`, or your own subclass of `keras.optimizers.Optimizer`.

    Returns:
        A subclass of `optimizer_class`, `<name>Accumulate`, registered for loading. The same
        `optimizer_class` gives the same class. Call `accumulating` before you load a model that was
        saved with such an optimizer.

    Raises:
        TypeError: If `optimizer_class` isn't a class of optimizers, if it accumulates already, if
            its optimizers wrap other optimizers (LossScaleOptimizer, MultiOptimizer), or if it has
            an argument or a member with the name of one of this package's.

    Example:

    >>> import keras
    >>> from keras_accum.keras3 import accumulating
    >>> LionAccumulate = accumulating(keras.optimizers.Lion)
    >>> LionAccumulate(learning_rate=0.001, accum_iters=5).accum_iters
    5
    """
    wrappers = tuple(
        getattr(keras.optimizers, name)
        for name in ("LossScaleOptimizer", "MultiOptimizer")
        if hasattr(keras.optimizers, name)
    )
    family.check_stock_class(optimizer_class, (keras.optimizers.Optimizer,), wrappers)
    stock_class = stock.class_of(optimizer_class)
    if stock_class not in _made:
        family.check_members(AccumulatingOptimizer, stock_class)
        _made[stock_class] = _make(f"{stock_class.__name__}Accumulate", stock_class)
    return _made[stock_class]


def _make(name, stock_class, **fixed):
    is_of_keras = ranges.is_of_keras(stock_class)
    cls = type(
        name,
        (AccumulatingOptimizer, stock_class),
        {
            "__module__": __name__ if is_of_keras else stock_class.__module__,
            "__doc__": docs.docstring(name, "keras3", "import keras", stock_class),
            "fixed": fixed,
            "_made_by": None if is_of_keras else (accumulating, (stock_class,)),
        },
    )
    package = "keras_accum" if is_of_keras else stock_class.__module__
    return keras.saving.register_keras_serializable(package=package)(cls)


AMSGradAccumulate = _make("AMSGradAccumulate", stock.class_of(keras.optimizers.Adam), amsgrad=True)
for _name in names.OPTIMIZERS:
    if hasattr(keras.optimizers, _name):
        globals()[f"{_name}Accumulate"] = accumulating(getattr(keras.optimizers, _name))

family.hand_on(keras.optimizers.LossScaleOptimizer)

_callback = of_host(keras, "keras3", "import keras")
monitor.introduce(keras.callbacks.CallbackList)

AccumulateByEpoch = _callback(epochs.AccumulateByEpoch)
ApplyPartialWindow = _callback(partial_window.ApplyPartialWindow)
AccumulationMonitor = _callback(monitor.AccumulationMonitor)
PythonGate = _callback(python_gate.PythonGate, _picker=optimizer.backend.Picker)
MicroBatchWeights = _callback(
    weights.MicroBatchWeights,
    _ops=keras.ops,
    _sum=staticmethod(keras.ops.sum),
    _flatten=staticmethod(keras.tree.flatten),
    # Keras finds the mask also on JAX, whose tensors can't have attributes.
    _mask=staticmethod(lambda output: keras.src.backend.get_keras_mask(output)),
)

__getattr__ = names.fallback(__name__)
