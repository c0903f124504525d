"""Warnings of what `fit` can see that makes a window differ from the big batch.

They need no callback of ours: Keras's class CallbackList starts to look. No host is imported here.
"""

import functools

import numpy as np

from keras_accum.callbacks import weights
from keras_accum.callbacks.base import accumulating_in

_NORMALIZES = (
    "Batch normalization trains in {}. The layer takes its statistics from each micro-batch, so "
    "this training isn't the training with the big batch. Use GroupNormalization or "
    "LayerNormalization, or freeze the layer with `trainable=False`. On Keras 3, "
    "`with_window_statistics(model)` makes at least the moving statistics those of the big batch."
)
_WEIGH = (
    "Construct the optimizer with reduction='weighted', and give `fit` the callback "
    "MicroBatchWeights()."
)
_MASKS = (
    "The model's output has a mask, and the optimizer has reduction='mean': elements of a "
    "micro-batch with few unmasked elements count more than those of other micro-batches in the "
    f"window. {_WEIGH}"
)
_SHORT = (
    "The {} micro-batches of an epoch have {} samples together, and the first one has {}. The "
    "optimizer has reduction='mean', so a shorter micro-batch, usually the last, counts as much as "
    f"each of the others in its window. {_WEIGH} Or train on whole micro-batches."
)

_HOOKS = "on_train_batch_end", "on_test_begin", "on_epoch_end"


class Caveats:
    """Looks at one training: after its first micro-batch, and after the last one of an epoch.

    The loss that Keras logs is an average over samples, so Keras counts the samples of an epoch.
    """

    def __init__(self, callbacks, is_mean):
        self._callbacks, self._is_mean = callbacks, is_mean
        self._size = None  # the samples of a micro-batch
        self._batches = 0  # the micro-batches of this epoch
        read = self._read = accumulating_in(callbacks.model.optimizer)[0]._accumulation.port.read
        self._means = [  # copies, because JAX writes into its arrays
            (layer, np.array(read(layer.moving_mean)) if layer.built else 0)
            for layer in callbacks.model._flatten_layers()
            if layer.trainable and _normalizes_batches(layer)
        ]
        for name in _HOOKS:
            vars(callbacks)[name] = _first(getattr(self, name), getattr(callbacks, name))

    def on_train_batch_end(self, batch, logs=None):
        self._batches = batch + 1
        if self._size is None:
            self._look(self._callbacks.model)

    def on_test_begin(self, logs=None):
        self._end_of_batches()

    def on_epoch_end(self, epoch, logs=None):
        self._end_of_batches()

    def _look(self, model):
        self._size = self._samples(model) / self._batches
        # A layer that is called with training=False doesn't move its averages.
        moved = [
            layer.name for layer, old in self._means if np.any(self._read(layer.moving_mean) != old)
        ]
        if moved:
            _say(model, "normalizes", _NORMALIZES.format(", ".join(moved)))
        outputs = getattr(model, "outputs", None) or []
        if self._is_mean and any(getattr(o, "_keras_mask", None) is not None for o in outputs):
            _say(model, "masks", _MASKS, in_means=True)

    def _end_of_batches(self):
        """Look at the samples of the epoch, before its validation counts others."""
        batches, self._batches = self._batches, 0
        if not batches or not self._is_mean:
            return
        model = self._callbacks.model
        samples = self._samples(model)
        # Other numbers of samples aren't of this epoch, as after `evaluate` in a callback.
        if (batches - 1) * self._size < samples < batches * self._size:
            message = _SHORT.format(batches, int(samples), int(self._size))
            _say(model, "short", message, in_means=True, alone=1)

    def _samples(self, model):
        """Return the number of samples of this epoch so far, 0 if it isn't known."""
        counts = [m.count for m in model.metrics if m.name == "loss" and hasattr(m, "count")]
        count = self._read(counts[0]) if counts else np.float32(0)
        # A sum of ones stalls where the type can't tell the next integer.
        is_exact = count.dtype in ("float32", "float64") and count < 1 / np.finfo(count.dtype).eps
        return float(count) if is_exact else 0.0


def _first(function, then):
    @functools.wraps(then)
    def both(*arguments, **keywords):
        function(*arguments, **keywords)
        return then(*arguments, **keywords)

    return both


def _say(model, what, message, in_means=False, alone=None):
    """Warn once for each optimizer whose windows it concerns.

    in_means: only with `reduction="mean"`. alone: the position in the window at which it doesn't
    matter, because the window may close there.
    """
    for optimizer in accumulating_in(model.optimizer):
        accumulation = optimizer._accumulation
        position, length, _ = accumulation.counts()
        concerns = accumulation.options.accumulates and length > 1 and position != alone
        if concerns and not (in_means and optimizer.reduction != "mean"):
            accumulation.training.warn_once(what, message)


def _normalizes_batches(layer):
    kinds = [cls.__name__ for cls in type(layer).__mro__]
    # Who uses WindowBatchNormalization knows.
    is_known = "WindowBatchNormalization" in kinds
    return not is_known and any(kind.startswith("BatchNormalization") for kind in kinds)


def _is_mean(model, models, flatten):
    """True if the loss of a train step is a mean, as far as Keras's own code computes it."""
    is_own = any(
        getattr(type(model), name) is not getattr(models, name)
        for name in ("train_step", "compute_loss")
    )
    return not is_own and model.loss is not None and weights.are_means(flatten(model.loss))


def watch(keras, flatten, is_told=lambda model: True):
    """Make Keras's class CallbackList look at each training of an optimizer of ours.

    flatten: Keras's flatten. is_told: whether Python can read what a model's train step writes.
    """
    callback_list = keras.callbacks.CallbackList
    on_train_begin = callback_list.on_train_begin

    @functools.wraps(on_train_begin)
    def begin_and_look(self, logs=None):
        on_train_begin(self, logs)
        for name in _HOOKS:  # of an earlier `fit` with this CallbackList
            vars(self).pop(name, None)
        model = getattr(self, "model", None)
        if accumulating_in(getattr(model, "optimizer", None)) and is_told(model):
            Caveats(self, _is_mean(model, keras.Model, flatten))

    callback_list.on_train_begin = begin_and_look
