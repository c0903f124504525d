"""What `fit` warns of, with or without our callbacks: differences from the big batch.

`ROWS`, at the end, is the table of warnings. What a loss is divided by has its own, in `terms`. An
unexpected error here suppresses the warning and never ends a training.
"""

import contextlib
import enum
import functools
import weakref
from typing import Callable, NamedTuple, Sequence

import numpy as np

from keras_accum.engine.optimizers import accumulating_in, inner, is_ours
from keras_accum.fit.closing import EndsWindowsFirst
from keras_accum.host import find_user_classes, is_named, warn, warn_once
from keras_accum.host.layers import normalizes_batches, torch_modules
from keras_accum.options import NAMES
from keras_accum.schedule import ENDLESS, ONE

_STOCK = (
    "{0} has accum_iters=1, the default, so each micro-batch makes an update, as with the stock "
    "optimizer. Set a window length, such as {0}(accum_iters=5), or give accum_iters=1 if you mean "
    "it."
)
_ANOTHER_COMPILE = (
    "A window is open, and its {} micro-batches are from another `compile` or model, perhaps with "
    "another loss. The next update adds up the gradients of both. If you don't mean this, call "
    "`optimizer.apply_partial_window()` before you compile."
)
_ON_WRAPPER = "`{0}` has no effect on a {1}: set `model.optimizer.inner_optimizer.{0}` instead."
_WRAPPER_ACTS = (
    "{0} wraps {1} and keeps values of its own for the weights, such as averages, which may move "
    "in each micro-batch, not once per update. Compile with {1} itself, and write what {0} does as "
    "a callback, in `OnUpdates([...])`; for averages, some optimizers have `use_ema`."
)
_NO_UPDATE = (
    "This training ends with no update: {}{} micro-batches are in the open window, and the weights "
    "haven't changed. {}, or give `fit` the callback ApplyPartialWindow."
)
_ENDLESS = "With accum_iters=None, call `close_window` in the train step"
_LONG = "Choose a smaller `accum_iters`"
_NO_WHOLE_WINDOW = (
    "No window of this training was whole: a window ends with its epoch, here after {} of {} "
    "micro-batches. Choose a smaller `accum_iters`. For windows that continue in the next epoch or "
    "in the next call of `fit`, construct the optimizer with reduction='mean', or call "
    "`train_on_batch`."
)
_NORMALIZES = (
    "Batch normalization trains in {}, with statistics per micro-batch or slice, so your results "
    "differ from the big batch. Use GroupNormalization or LayerNormalization, or freeze the layer."
)
_NORMALIZES_IN_MODULES = (
    "Batch normalization trains in {}, with statistics per micro-batch or slice, so your results "
    "differ from the big batch. Use `torch.nn.GroupNorm`, or let the module of PyTorch stay in "
    "`eval()`: `trainable=False` doesn't freeze its statistics."
)
_KEEPS = (
    "Layers keep values from one call to the next, such as statistics or a power iteration: {}. "
    "They move once per micro-batch or slice, so your results differ from the big batch. Freeze "
    "them, or use layers that keep nothing; `compare_with_big_batch` shows the difference. A "
    "layer that counts steps, as for pruning, counts micro-batches: give it as many."
)
_BOTH = (
    "MicroBatches splits batches of {0} samples, and {1} adds up {2} of these batches, so an "
    "update sees {3} samples. For updates on {0} samples, leave out one of the two."
)
_NO_SLICES = (
    "MicroBatches({}) splits no batch of {} samples: a slice has more. Choose a smaller size."
)
_METRICS = (
    "Layers update metrics with values of a slice, such as its mean: {}. These metrics may differ "
    "from the whole batch's. Update them with one value per sample; your weights are the same."
)
_SCALE = (
    "The loss scale fell from {:g} to {:g}: micro-batches whose gradients overflowed were dropped, "
    "so windows have other samples than the big batches. A micro-batch's gradients overflow sooner "
    "than the big batch's, because they are divided by fewer samples. Begin with a smaller scale: "
    "compile with `LossScaleOptimizer({}(...), initial_scale={:g})`."
)

_SMALL = 2**20  # elements read to see whether they move

_losses = weakref.WeakKeyDictionary()  # references to the losses of the last training


class When(enum.Enum):
    """When to look."""

    AT_BEGIN = "before the first micro-batch"
    AFTER_BATCH = "after the first batch, and after the first one in slices"
    AFTER_EPOCH = "after an epoch and its callbacks"
    AT_END = "after all callbacks"


class Row(NamedTuple):
    """A warning.

    optimizers: a function of the Training that lists the optimizers to look at.
    find: a function of the Training and an optimizer that returns the values for the text's fields,
        or None if there is nothing to warn of.
    is_once: False if each training warns, not only an optimizer's first.
    """

    when: Sequence[When]
    text: str
    optimizers: Callable
    find: Callable
    is_once: bool = True


def find_hooks(callbacks, optimizers, host, added):
    """Return the functions to run before a CallbackList's methods: `{method: [functions]}`."""
    # Not a callback in the list: Keras may call it from another thread, or not for batches.
    with _suppress_errors():
        if host.waits_for_steps(callbacks.model):
            training = Training(callbacks, optimizers, host, added)
            _look(When.AT_BEGIN, training)
            return {
                "on_train_batch_end": [functools.partial(_look_at_batch, training)],
                "on_epoch_begin": [functools.partial(_look_after_epoch, training)],
                "on_train_end": [functools.partial(_look_at_end, training)],
            }
    return {}


@contextlib.contextmanager
def _suppress_errors():
    """Suppress everything but warnings, which users may turn into errors."""
    try:
        yield
    except Warning:
        raise
    except Exception:
        pass


def _look(when, training):
    """Give the warnings of this moment."""
    for row in ROWS:
        if when in row.when:
            with _suppress_errors():
                for optimizer in row.optimizers(training):
                    values = row.find(training, optimizer)
                    if values is not None:
                        _give(row, optimizer, values)


def _give(row, optimizer, values):
    if row.is_once:
        warn_once(optimizer, row.text, *values)
    else:
        warn(row.text.format(*values))


def _look_at_batch(training, batch, logs=None):
    with _suppress_errors():
        if training.sees_first(batch):
            _look(When.AFTER_BATCH, training)


def _look_after_epoch(training, epoch=None, logs=None):
    with _suppress_errors():
        training.read_scales()
        _look(When.AFTER_EPOCH, training)


def _look_at_end(training, logs=None):
    _look_after_epoch(training)
    _look(When.AT_END, training)


class Training:
    """One training, as the warnings see it.

    optimizers: the accumulating ones.
    slices: the MicroBatches among its callbacks.
    starts: {optimizer: (updates, position)} at the beginning.
    ended: the windows that ended with an epoch by themselves.
    in_slices: True once a batch was split; None before the first batch.
    size: the samples in a batch so far, 0 if unknown.
    moved: layers whose calls have changed values that they keep.
    scales: the dynamic loss scale before the last epoch and now; infinity without one.
    """

    in_slices, size, moved = None, 0, ()

    def __init__(self, callbacks, optimizers, host, added):
        # Kept, because on JAX `CallbackList.model` syncs the model's state.
        self.model, self._callbacks, self.host = callbacks.model, callbacks, host
        self.optimizers = optimizers
        self.slices = [c for c in callbacks.callbacks if is_named(c, "MicroBatches")]
        self.starts = {o: o._accumulation.read_progress() for o in optimizers}
        self._ending = [callback for callback in added if isinstance(callback, EndsWindowsFirst)]
        self._kept = [(layer, self._read_kept(layer)) for layer in host.list_layers(self.model)]
        self.scales = 2 * [self._read_scale()]

    @property
    def ended(self):
        return [window for callback in self._ending for window in callback.ended]

    def sees_first(self, batch):
        """Return True after the first batch, and after the first one in slices."""
        in_slices = any(callback.in_slices for callback in self.slices)
        if self.in_slices == in_slices:
            return False
        self.in_slices = in_slices  # even if the rest raises an error
        self.size = int(self._count_samples()) // (batch + 1)
        # Layers called with training=False don't move their averages.
        self.moved = [layer for layer, old in self._kept if _differ(self._read_kept(layer), old)]
        return True

    def _count_samples(self):
        """Return the number of samples in this epoch so far, 0 if unknown."""
        metrics, mean = self._callbacks.model.metrics, self.host.keras.metrics.Mean  # JAX syncs
        means = [m for m in metrics if m.name == "loss" and isinstance(m, mean)]
        return float(self.host.read(means[0].count)) if means else 0.0

    def _read_kept(self, layer):
        """Return the values a layer's calls may change, other than its random state."""
        kept = self.host.list_kept(layer)
        small = [v for v in kept if np.prod(np.shape(v), dtype="float64") <= _SMALL]
        # Copies, because JAX reuses the arrays' memory.
        return [np.array(self.host.read(variable)) for variable in small]

    def read_scales(self):
        """Read the loss scale again."""
        self.scales = self.scales[1], self._read_scale()

    def _read_scale(self):
        scale = self.host.loss_scale(self.model.optimizer)
        return float("inf") if scale is None else scale


def _differ(values, others):
    return any(np.any(value != other) for value, other in zip(values, others))


# -- the optimizers to look at ---------------------------------------------------------------------


def _ours(training):
    return training.optimizers


def _compiled(training):
    """List the model's optimizer, of any kind."""
    return [training.model.optimizer]


def _in_wrapper(training):
    wrapper = training.model.optimizer
    return [] if inner(wrapper) is wrapper else [inner(wrapper)]


def _splitting(training):
    """List the optimizers that get a user's batch in slices or micro-batches."""
    if training.in_slices:
        return _compiled(training)
    return [o for o in training.optimizers if o._accumulation.counts().length > 1]


# -- the values for the texts ----------------------------------------------------------------------


def _find_attribute(training, optimizer):
    wrapper = training.model.optimizer
    names = sorted(vars(wrapper).keys() & {"lr", *NAMES})
    return (names[0], type(wrapper).__name__) if names else None


def _find_acting_wrapper(training, wrapper):
    """Find an optimizer of the user's around ours, with variables like the weights."""
    wrapper = inner(wrapper)
    ours = [] if is_ours(wrapper) else accumulating_in(wrapper)
    if not ours or not find_user_classes(type(wrapper)):
        return None
    values = [item for value in vars(wrapper).values() for item in training.host.flatten(value)]
    parts = [item for item in values if is_ours(item) or hasattr(item, "apply_gradients")]
    known = {id(variable) for part in parts for variable in _list_variables(part)}
    shapes = {tuple(weight.shape) for weight in training.model.trainable_variables} - {()}
    own = [v for v in _list_variables(wrapper) if id(v) not in known and tuple(v.shape) in shapes]
    return (type(wrapper).__name__, type(ours[0]).__name__) if own else None


def _list_variables(optimizer):
    """List an optimizer's variables: in the legacy style of tf_keras, its `weights`."""
    return list(getattr(optimizer, "weights", None) or optimizer.variables)


def _find_default_length(training, optimizer):
    options = optimizer._accumulation.options
    of_keras = getattr(optimizer, "gradient_accumulation_steps", None)
    is_default = options.is_stock and options.accum_iters is ONE and not of_keras
    return (type(optimizer).__name__,) if is_default else None


def _find_other_losses(training, optimizer):
    """Find a window that was opened with other losses: each `compile` makes new ones."""
    losses, *_ = training.host.find_losses(training.model)
    before, position = _losses.pop(optimizer, None), training.starts[optimizer][1]
    if losses is not None:
        _losses[optimizer] = weakref.ref(losses)
    return (position,) if position and before is not None and before() is not losses else None


def _find_large_slices(training, optimizer):
    sizes = [callback.size for callback in training.slices if callback.exceeds(training.size)]
    is_split = training.in_slices or not training.size
    return (sizes[0], training.size) if sizes and not is_split else None


def _find_slices_in_windows(training, optimizer):
    if not training.slices:
        return None
    lengths = [(o, o._accumulation.counts().length) for o in training.optimizers]
    of_keras = getattr(inner(optimizer), "gradient_accumulation_steps", None)
    lengths.append((inner(optimizer), of_keras or 1))
    for with_windows, length in lengths:
        if 1 < length < ENDLESS:
            name, size = type(with_windows).__name__, training.size
            return size, name, length, size * length
    return None


def _find_metrics_of_slices(training, optimizer):
    names = [name for callback in training.slices for name in callback.metrics_of_slices]
    return (", ".join(names),) if names else None


def _find_moved(is_of_kind, training, optimizer):
    names = [layer.name for layer in training.moved if is_of_kind(layer)]
    return (", ".join(names),) if names else None


def _normalizes(layer):
    return normalizes_batches(layer) and not torch_modules(layer)


def _normalizes_in_modules(layer):
    return normalizes_batches(layer) and bool(torch_modules(layer))


def _keeps(layer):
    return not normalizes_batches(layer)


def _find_fallen_scale(training, optimizer):
    (before, now), length = training.scales, optimizer._accumulation.counts().length
    if now < before and 1 < length < ENDLESS:
        return before, now, type(optimizer).__name__, min(now, before / length)
    return None


def _find_no_update(training, optimizer):
    updates, position = training.starts[optimizer]
    now = optimizer._accumulation.counts()
    is_larger = optimizer.completed_updates == updates and now.position > position
    if not is_larger or optimizer.reduction == "mean":
        return None
    if now.length == ENDLESS:
        return now.position, "", _ENDLESS
    return now.position, f" of {now.length}", _LONG


def _find_no_whole_window(training, optimizer):
    ended = [window for window in training.ended if window.optimizer is optimizer]
    is_first = training.starts[optimizer] == (0, 0)  # a later training may be an epoch's rest
    if ended and is_first and optimizer.completed_updates == len(ended):
        return ended[0].position, ended[0].length
    return None


_find_normalizing, _find_normalizing_modules, _find_keeping = (
    functools.partial(_find_moved, is_of_kind)
    for is_of_kind in (_normalizes, _normalizes_in_modules, _keeps)
)
ROWS = [
    Row((When.AT_BEGIN, When.AFTER_EPOCH), _ON_WRAPPER, _in_wrapper, _find_attribute),
    Row((When.AFTER_BATCH,), _WRAPPER_ACTS, _compiled, _find_acting_wrapper),
    Row((When.AT_BEGIN,), _STOCK, _ours, _find_default_length),
    Row((When.AT_BEGIN,), _ANOTHER_COMPILE, _ours, _find_other_losses, is_once=False),
    Row((When.AFTER_BATCH,), _NO_SLICES, _compiled, _find_large_slices),
    Row((When.AFTER_BATCH,), _BOTH, _compiled, _find_slices_in_windows),
    Row((When.AFTER_BATCH,), _METRICS, _compiled, _find_metrics_of_slices),
    Row((When.AFTER_BATCH,), _NORMALIZES, _splitting, _find_normalizing),
    Row((When.AFTER_BATCH,), _NORMALIZES_IN_MODULES, _splitting, _find_normalizing_modules),
    Row((When.AFTER_BATCH,), _KEEPS, _splitting, _find_keeping),
    Row((When.AFTER_EPOCH,), _SCALE, _ours, _find_fallen_scale),
    Row((When.AT_END,), _NO_UPDATE, _ours, _find_no_update, is_once=False),
    Row((When.AT_END,), _NO_WHOLE_WINDOW, _ours, _find_no_whole_window),
]
