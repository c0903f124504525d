"""What `fit` warns of, with or without our callbacks: differences from the big batch.

What a loss is divided by has its own warnings, in `terms`. An unexpected error here suppresses the
warning and never ends a training.
"""

import functools

import numpy as np

from keras_accum.engine.optimizers import accumulating_in, inner, is_ours
from keras_accum.host import find_own_methods, find_user_classes, is_named, warn_once
from keras_accum.schedule import ENDLESS, ONE

_STOCK = (
    "{0} has accum_iters=1, the default, so each micro-batch makes an update, as with the stock "
    "optimizer. Set a window length, such as {0}(accum_iters=5), or give accum_iters=1 if you mean "
    "it."
)
_ON_WRAPPER = (
    "`accum_iters` has no effect on a {}: set `model.optimizer.inner_optimizer.accum_iters` "
    "instead."
)
_WRAPPER_ACTS = (
    "{0} wraps {1} and keeps values of its own for the weights, such as averages, which may move "
    "in each micro-batch, not once per update. Compile with {1} itself, and write what {0} does as "
    "a callback, in `OnUpdates([...])`; for averages, some optimizers have `use_ema`."
)
_NO_WHOLE_WINDOW = (
    "No window of this training was whole: the last had {} of {} micro-batches. Choose a "
    "smaller `accum_iters`. For windows that continue in the next epoch or in the next call of "
    "`fit`, construct the optimizer with reduction='mean'."
)
_ENDLESS = (
    "This training ends with no update: with accum_iters=None, call `close_window` in the train "
    "step, or give `fit` the callback ApplyPartialWindow."
)
_KEEPS = (
    "Layers keep values from one call to the next, such as the statistics of batch normalization "
    "or the states of `stateful=True`: {}. They move once per micro-batch or slice, so your "
    "results differ from the big batch. Use GroupNormalization or LayerNormalization, freeze the "
    "layers (a module of PyTorch by `eval()`), or leave `stateful` out. `compare_with_big_batch` "
    "shows the difference."
)
_METRICS = (
    "Layers update metrics with values of a slice, such as its mean: {}. These metrics may differ "
    "from the whole batch's. Update them with one value per sample; your weights are the same."
)

_SMALL = 2**20  # elements read to see whether they move


def find_hooks(callbacks, optimizers, host):
    """Return the functions to run before a CallbackList's methods: `{method: [functions]}`."""
    # Not a callback in the list: Keras may call it from another thread, or not for batches.
    if not host.waits_for_steps(callbacks.model):
        return {}
    training = Training(callbacks, optimizers, host)
    training.begin()
    return {"on_train_batch_end": [training.end_batch], "on_train_end": [training.end]}


def _without_errors(method):
    """Decorate a method to suppress all errors but warnings, which users may turn into errors."""

    @functools.wraps(method)
    def call(*arguments, **keywords):
        try:
            method(*arguments, **keywords)
        except Warning:
            raise
        except Exception:
            pass

    return call


class Training:
    """One training, as the warnings see it. `optimizers` are the accumulating ones."""

    _kept, _in_slices, _batches = (), None, 0

    def __init__(self, callbacks, optimizers, host):
        # The model is kept, because on JAX `CallbackList.model` syncs its state.
        self._model, self._callbacks, self._host = callbacks.model, callbacks, host
        self._optimizers = optimizers
        self._slices = [c for c in callbacks.callbacks if is_named(c, "MicroBatches")]

    @_without_errors
    def begin(self):
        self._starts = {}  # updates, position and length at the beginning
        for optimizer in self._optimizers:
            start, options = optimizer._accumulation, optimizer._accumulation.options
            self._starts[optimizer] = (*start.read_progress(), start.counts().length)
            of_keras = getattr(optimizer, "gradient_accumulation_steps", None)
            if options.is_stock and options.accum_iters is ONE and not of_keras:
                warn_once(optimizer, _STOCK, type(optimizer).__name__)
        self._kept = self._read_kept()

    @_without_errors
    def end_batch(self, batch, logs=None):
        """Look after the first batch, and after the first one in slices."""
        self._batches = max(self._batches, batch + 1)  # the last epoch may be a shorter one
        in_slices = any(c.in_slices for c in self._slices)
        if in_slices == self._in_slices:
            return
        compiled = self._callbacks.model.optimizer  # JAX syncs
        names = [name for callback in self._slices for name in callback.metrics_of_slices]
        if names:
            warn_once(compiled, _METRICS, ", ".join(names))
        before, self._kept = {id(layer): old for layer, old in self._kept}, self._read_kept()
        found = [(layer, before.get(id(layer), []), new) for layer, new in self._kept]
        if all(len(old) == len(new) for _, old, new in found):
            self._in_slices = in_slices  # else, look again: this batch has built layers
        # Layers called with training=False don't move their averages.
        moved = [layer.name for layer, old, new in found if _differ(old, new)]
        owners = [o for o in self._optimizers if o._accumulation.counts().length > 1]
        for owner in ([compiled] if in_slices else owners) if moved else ():
            warn_once(owner, _KEEPS, ", ".join(moved))
        self._look_at_wrapper()

    def _look_at_wrapper(self):
        """Look at what is around our optimizer."""
        compiled, wrapper = self._model.optimizer, inner(self._model.optimizer)
        if compiled is not wrapper and "accum_iters" in vars(compiled):
            warn_once(wrapper, _ON_WRAPPER, type(compiled).__name__)
        ours = [] if is_ours(wrapper) else accumulating_in(wrapper)
        if ours and find_user_classes(type(wrapper)) and self._keeps_values(wrapper):
            warn_once(compiled, _WRAPPER_ACTS, type(wrapper).__name__, type(ours[0]).__name__)

    def _keeps_values(self, wrapper):
        """Return True if a user's optimizer has variables like the weights, beside ours'."""
        values = [item for value in vars(wrapper).values() for item in self._host.flatten(value)]
        parts = [item for item in values if is_ours(item) or hasattr(item, "apply_gradients")]
        known = {id(variable) for part in parts for variable in _list_variables(part)}
        shapes = {tuple(weight.shape) for weight in self._model.trainable_variables} - {()}
        own = [v for v in _list_variables(wrapper) if id(v) not in known]
        return any(tuple(variable.shape) in shapes for variable in own)

    @_without_errors
    def end(self, logs=None):
        for optimizer in self._optimizers:
            now, options = optimizer._accumulation.counts(), optimizer._accumulation.options
            updates, position, length = self._starts[optimizer]
            only_grew = optimizer.completed_updates == updates and now.position > position
            if now.length == ENDLESS:
                if only_grew:
                    warn_once(optimizer, _ENDLESS)
            elif options.ends_with_epoch:  # the window is closed by now: the batches tell
                # A later training may be an epoch's rest, own steps may call the optimizer twice.
                own = find_own_methods(self._model, self._host.keras.Model, "train_step")
                is_first = (updates, position) == (0, 0) and not own
                if is_first and 0 < self._batches < min(length, now.length):  # windows may grow
                    had = now.position or self._batches
                    warn_once(optimizer, _NO_WHOLE_WINDOW, had, now.length)
            elif only_grew and optimizer.reduction == "sum":
                warn_once(optimizer, _NO_WHOLE_WINDOW, now.position, now.length)
        self._look_at_wrapper()  # a callback may have set an attribute

    def _read_kept(self):
        """Return (layer, values that its calls may change, without its random state) for each."""
        return [(layer, self._read(layer)) for layer in self._host.list_layers(self._model)]

    def _read(self, layer):
        kept = self._host.list_kept(layer)
        small = [v for v in kept if np.prod(np.shape(v), dtype="float64") <= _SMALL]
        # Copies, because JAX reuses the arrays' memory.
        return [np.array(self._host.read(variable)) for variable in small]


def _list_variables(optimizer):
    """List an optimizer's variables: in the legacy style of tf_keras, its `weights`."""
    return list(getattr(optimizer, "weights", None) or optimizer.variables)


def _differ(values, others):
    return any(np.any(value != other) for value, other in zip(values, others))
