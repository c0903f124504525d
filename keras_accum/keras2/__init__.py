"""The optimizers for standalone Keras 2.2 and 2.3 on TensorFlow 1.

Each class is the stock optimizer of its name with another `get_updates`: it adds the gradients to
the accumulators and makes the update of their average, at `accum_iters=1` as well. SGD, Adam and
RMSprop run their rule with gated scalars (see `rules`). All others run the stock `get_updates`, and
what it writes is selected.

| file | holds |
| --- | --- |
| `optimizer` | what an optimizer does: arguments, config |
| `micro_batch` | one micro-batch: the sums, the update, the order of all writes |
| `recording` | the stock `get_updates`, run without being let write |
| `state` | slots, counters and sums, and their names |
| `stock` | the stock optimizers: from one, back to one |
"""

import math

from keras_accum import base, host, names, rules
from keras_accum.callbacks import partial_window
from keras_accum.states import StateError  # noqa: F401, public

keras = host.import_standalone_keras_2()

from keras_accum.keras2.optimizer import AccumulatingOptimizer  # noqa: E402, as above

_stock = keras.optimizers
K = keras.backend


def _register(cls):
    """Files with these classes load without `custom_objects`, by the name alone."""
    known, theirs = keras.utils.get_custom_objects(), cls._stock_class
    other = getattr(known.get(cls.__name__), "_stock_class", theirs)
    # A class that is defined once more, as in a notebook, takes the place of the old one.
    if (other.__module__, other.__qualname__) != (theirs.__module__, theirs.__qualname__):
        raise TypeError(
            f"{cls.__name__} is that of {other.__module__}.{other.__qualname__} already, and this "
            "Keras knows classes by their names alone: give the class another name. "
            f"Received: optimizer_class={theirs}"
        )
    known[cls.__name__] = cls
    return cls


@_register
class SGDAccumulate(AccumulatingOptimizer, _stock.SGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._has_momentum = K.get_value(self.momentum) != 0

    def _rule(self):
        return rules.SGD(momentum=self._has_momentum, nesterov=self.nesterov)


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
    momentum = 0.0  # the stock optimizer of this Keras has none

    def _rule(self):
        return rules.RMSprop(self.momentum, centered=False, epsilon_in_root=False)


_made = {
    _stock.SGD: SGDAccumulate,
    _stock.Adam: AdamAccumulate,
    _stock.RMSprop: RMSpropAccumulate,
}


def accumulating(optimizer_class):
    """The class of an optimizer with `accum_iters`: one update per window of micro-batches.

    An update is the code of `optimizer_class`, on the average gradient of a window. The class has
    the arguments of `optimizer_class` in their order and then those that all classes of this
    package have, by keyword. For the same `optimizer_class` it is the same class.

    Its `get_updates` must write by `update`, `update_add` and `update_sub` of `keras.backend`, to
    variables that it makes by `zeros`, `ones` and `variable` of `keras.backend`, as Keras's own do.

    Args:
        optimizer_class: A class of optimizers: one of Keras, as `keras.optimizers.Nadam`, or a
            subclass of `keras.optimizers.Optimizer` of your own.

    Returns:
        A subclass of `optimizer_class`, registered for loading by its name. Call `accumulating`
        before you load a model that was saved with such an optimizer.

    Raises:
        TypeError: if `optimizer_class` isn't a class of optimizers, if it accumulates already, if
            its optimizers are around others (TFOptimizer), if it has an argument or a member by the
            name of one of this package's, or if another class has its name.
        ValueError: when a train step is made, if `get_updates` writes by something else.

    Example:

    >>> import keras
    >>> from keras_accum.keras2 import accumulating
    >>> NadamAccumulate = accumulating(keras.optimizers.Nadam)
    >>> NadamAccumulate(accum_iters=5).accum_iters
    5
    """
    base.check_stock_class(optimizer_class, (_stock.Optimizer,), (_stock.TFOptimizer,))
    if optimizer_class not in _made:
        base.check_members(AccumulatingOptimizer, optimizer_class, "keras")
        is_of_keras = optimizer_class.__module__ == _stock.__name__
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


class ApplyPartialWindow(partial_window.ApplyPartialWindow, keras.callbacks.Callback):
    __doc__ = partial_window.ApplyPartialWindow.__doc__.format(
        host="keras2", import_keras="import keras"
    )

    def on_batch_end(self, batch, logs=None):
        # Keras 2.2 validates before it says that the epoch has ended, and doesn't say that it does.
        steps = self.params["steps"]
        if not steps:
            steps = math.ceil(self.params["samples"] / self.params["batch_size"])
        if batch + 1 == steps:
            self._close()


__getattr__ = names.fallback(__name__)
