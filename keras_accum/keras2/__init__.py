"""The optimizers for standalone Keras 2.2 and 2.3 on TensorFlow 1.

Each class is the stock optimizer of its name with a new `get_updates`, which hands the gradients to
the engine (`accumulation`), also with `accum_iters=1`. In an update, SGD, Adam and RMSprop run
their rule with gated scalars (see `rules`). All other classes run the stock `get_updates` and
select its writes.

| file | holds |
| --- | --- |
| `optimizer` | the optimizer: arguments and config |
| `port` | what this Keras does for the engine: variables, an update, the order of all writes |
| `recording` | runs the stock `get_updates` and records its writes |
| `state` | slots, counters and sums, and their names |
| `stock` | conversion from and to stock optimizers |
"""

import math

from keras_accum import family, host, names, ranges, rules
from keras_accum.callbacks import epochs, of_host, partial_window
from keras_accum.schedule import AccumulationSchedule  # noqa: F401, public
from keras_accum.states import StateError  # noqa: F401, public

keras = host.import_standalone_keras_2()

from keras_accum.keras2.optimizer import AccumulatingOptimizer  # noqa: E402, checked just above

_stock = keras.optimizers


def _register(cls):
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


@_register
class SGDAccumulate(AccumulatingOptimizer, _stock.SGD):
    def _rule(self):
        has_momentum = bool(self._accumulation.port.given.get("momentum"))
        return rules.SGD(has_momentum, self.nesterov)


@_register
class AdamAccumulate(AccumulatingOptimizer, _stock.Adam):
    def _rule(self):
        return rules.AMSGrad() if self.amsgrad else rules.Adam()


@_register
class AMSGradAccumulate(AccumulatingOptimizer, _stock.Adam):
    fixed = {"amsgrad": True}

    def _rule(self):
        return rules.AMSGrad()


@_register
class RMSpropAccumulate(AccumulatingOptimizer, _stock.RMSprop):
    momentum = 0.0  # the stock optimizer of this Keras has no momentum

    def _rule(self):
        return rules.RMSprop(self.momentum, centered=False, epsilon_in_root=False)


_made = {
    _stock.SGD: SGDAccumulate,
    _stock.Adam: AdamAccumulate,
    _stock.RMSprop: RMSpropAccumulate,
}


def accumulating(optimizer_class):
    """Return a subclass of an optimizer class that makes one update per window of micro-batches.

    An update runs the code of `optimizer_class` on the average gradient of a window. The returned
    class takes the arguments of `optimizer_class` in their order, plus the keyword arguments of all
    classes of this package: `accum_iters`, `reduction`, `skip_nonfinite`, `skip_norm`,
    `window_transforms`, `gate`, `all_reduce`, `lr` and `decay`; see `AdamAccumulate`.

    `get_updates` of `optimizer_class` must write with `update`, `update_add` and `update_sub` of
    `keras.backend`, to variables that it creates with `zeros`, `ones` and `variable` of
    `keras.backend`, as Keras's own optimizers do.

    Args:
        optimizer_class: A class of optimizers: a class of Keras, for example
            `keras.optimizers.Nadam`, or your own subclass of `keras.optimizers.Optimizer`.

    Returns:
        A subclass of `optimizer_class`, `<name>Accumulate`, registered for loading by its name. The
        same `optimizer_class` gives the same class. Call `accumulating` before you load a model
        that was saved with such an optimizer.

    Raises:
        TypeError: If `optimizer_class` isn't a class of optimizers, if it accumulates already, if
            its optimizers wrap other optimizers (TFOptimizer), if it has an argument or a member
            with the name of one of this package's, or if another class already has its name.
        ValueError: When a train step is built, if `get_updates` writes in another way.

    Example:

    >>> import keras
    >>> from keras_accum.keras2 import accumulating
    >>> NadamAccumulate = accumulating(keras.optimizers.Nadam)
    >>> NadamAccumulate(accum_iters=5).accum_iters
    5
    """
    family.check_stock_class(optimizer_class, (_stock.Optimizer,), (_stock.TFOptimizer,))
    if optimizer_class not in _made:
        family.check_members(AccumulatingOptimizer, optimizer_class)
        is_of_keras = ranges.is_of_keras(optimizer_class)
        members = {
            "__module__": __name__ if is_of_keras else optimizer_class.__module__,
            "_made_by": None if is_of_keras else (accumulating, (optimizer_class,)),
        }
        bases = AccumulatingOptimizer, optimizer_class
        cls = type(f"{optimizer_class.__name__}Accumulate", bases, members)
        _made[optimizer_class] = _register(cls)
    return _made[optimizer_class]


for _name in names.OPTIMIZERS:
    if f"{_name}Accumulate" not in globals() and hasattr(_stock, _name):
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
