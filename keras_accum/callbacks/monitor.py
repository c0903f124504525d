"""The callback `AccumulationMonitor`, for all hosts. No host is imported here."""

import math
import numbers

from keras_accum.base import inner
from keras_accum.callbacks.base import (
    KnowsOthers,
    SubstitutesTrainFunction,
    is_named,
    steps_per_execution,
)
from keras_accum.norms import MICRO_BATCH_NORM, SKIPPED, UPDATE_NORM
from keras_accum.schedule import ENDLESS
from keras_accum.warn import warn

_BATCH, _SCALE = "effective_batch", "noise_scale"
_COUNTS = "completed_updates", "window_position"
LOGGED = (*_COUNTS, "learning_rate", UPDATE_NORM, SKIPPED, _BATCH, _SCALE)

# What the progress bar calls some of them.
_LABELS = {"completed_updates": "updates", "window_position": "window", SKIPPED: "skipped"}


class NoiseScale:
    """tr(Sigma) / |G|^2 from the gradients of micro-batches and of whole windows, smoothed.

    With G the true gradient and Sigma the covariance of the gradient of one sample, the gradient of
    b samples has the expected square |G|^2 + tr(Sigma) / b. Two sizes give two equations.
    """

    def __init__(self, batch_size, smoothing):
        self._batch_size = batch_size
        self._smoothing = smoothing
        self._trace = self._square = 0.0

    @property
    def value(self):
        """The noise scale, NaN until there is an estimate."""
        return self._trace / self._square if self._square > 0 else math.nan

    def start(self, optimizer):
        """Begin to look at a training."""
        self._seen = optimizer.window_position, optimizer.completed_updates
        self._squares = []  # the squared norms of the open window's micro-batches

    def look(self, optimizer, position, updates):
        """Look at a micro-batch, after which the optimizer has this position and these updates."""
        (last_position, last_updates), self._seen = self._seen, (position, updates)
        if self._seen == (last_position, last_updates):  # the micro-batch was dropped
            return
        if position == 1:  # a new window, also after a window that was closed early
            self._squares = []
        self._squares.append(optimizer._accumulation.norms.read(MICRO_BATCH_NORM) ** 2)
        if self._seen == (0, last_updates + 1):
            if len(self._squares) == last_position + 1 > 1:  # the whole window was seen
                norm = optimizer._accumulation.norms.read(UPDATE_NORM)
                self._add_window(norm, optimizer.reduction)
            self._squares = []

    def _add_window(self, norm, reduction):
        """Add the estimates from a window whose gradients have an average or a sum of this norm."""
        count, size = len(self._squares), self._batch_size
        small = sum(self._squares) / count
        big = (norm / count if reduction == "sum" else norm) ** 2
        square = (count * size * big - size * small) / (count * size - size)
        trace = (small - big) / (1 / size - 1 / (count * size))
        # Both estimates are unbiased, but their ratio isn't. So the ratio is that of the averages.
        self._square += (1 - self._smoothing) * (square - self._square)
        self._trace += (1 - self._smoothing) * (trace - self._trace)


class AccumulationMonitor(KnowsOthers, SubstitutesTrainFunction):
    """Log what accumulation does in `fit`: in the progress bar, History, CSVLogger and TensorBoard.

    At the end of each micro-batch and of each epoch, the monitor adds these logs:

    - `completed_updates`: the number of updates made.
    - `window_position`: the number of micro-batches in the open window, 0 if no window is open.
    - `learning_rate`: the learning rate of the next update, from the schedule or from `decay`.
    - `gradient_norm`, with `accum_iters` > 1: the norm of the average gradient that made the last
      update, before clipping. NaN before the first update.
    - `skipped_micro_batches`, with `skip_nonfinite` or `skip_norm`: the number of micro-batches
      that were dropped since the start of the training.
    - `effective_batch`, with `batch_size`: the number of samples in a window. Not with
      `accum_iters=None`.
    - `noise_scale`, with `noise_scale=True`: the batch size, in samples, beyond which more
      accumulation pays little. NaN until there is an estimate.

    The callbacks of Keras get all of these logs. The progress bar shows only those that `show`
    names. The bar shortens three of them: `updates: 12` is `completed_updates`, `window: 3/5` is a
    `window_position` of 3 in a window of 5, and `skipped: 2` is `skipped_micro_batches`.

    A callback gets only the logs of callbacks before it in the list. List the monitor

    - before CSVLogger and TensorBoard,
    - before EarlyStopping, ModelCheckpoint and ReduceLROnPlateau, if they watch one of its logs,
    - before PythonGate,
    - after ApplyPartialWindow, whose update at the end of an epoch is then in the logs.

    The monitor reads from the device after each micro-batch. The train function is traced once more
    for a training with the monitor. A training without the monitor isn't affected.

    The simple noise scale is B = tr(Sigma) / |G|^2, where G is the true gradient and Sigma the
    covariance of the gradient of one sample. A training with batches of B samples needs about twice
    the least possible number of samples and twice the least possible number of updates. The monitor
    estimates |G|^2 and tr(Sigma) from each window, without bias, and then smooths the estimates. In
    a window of k micro-batches of b samples:

        |G|^2     ~ (k b |average|^2 - b mean |micro-batch|^2) / (k b - b)
        tr(Sigma) ~ (mean |micro-batch|^2 - |average|^2) / (1 / b - 1 / (k b))

    Args:
        batch_size: Integer >= 1 or None (default). The samples of a micro-batch, over all replicas.
        noise_scale: Boolean, default False. Needs `batch_size` and `accum_iters` of at least 2.
        smoothing: Float in [0, 1), default 0.99. The share of the earlier estimates that each
            window keeps.
        show: List of names of logs, default ("completed_updates",). What the progress bar shows, in
            this order. The default takes about 15 characters of the line.

    Raises:
        TypeError: If an argument has the wrong type. At the start of training, if the model's
            optimizer isn't of this package.
        ValueError: If an argument is out of its range. At the start of training, if `noise_scale`
            can't be estimated: with `accum_iters=1`, `reduction="weighted"`, `window_transforms`,
            `all_reduce="per_window"` or `steps_per_execution` other than 1.

    Warns:
        UserWarning: At the start of training, if the monitor is listed after a callback of Keras
            that uses its logs, or before ApplyPartialWindow.

    Paper:
        An Empirical Model of Large-Batch Training. Sam McCandlish, Jared Kaplan, Dario Amodei and
        the OpenAI Dota Team, 2018.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AccumulationMonitor, AdamAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> monitor = AccumulationMonitor(batch_size=10)
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[monitor]).history
    >>> [history[name][-1] for name in ("completed_updates", "window_position", "effective_batch")]
    [1, 2, 50]
    """

    def __init__(
        self, batch_size=None, noise_scale=False, smoothing=0.99, show=("completed_updates",)
    ):
        super().__init__()
        if batch_size is not None and not _is_count(batch_size):
            raise ValueError(
                "`batch_size` must be an integer >= 1, the samples of a micro-batch, or None. "
                f"Received: batch_size={batch_size!r}"
            )
        if not isinstance(noise_scale, bool):
            raise TypeError(
                f"`noise_scale` must be True or False. Received: noise_scale={noise_scale!r}"
            )
        if noise_scale and batch_size is None:
            raise ValueError("`noise_scale` needs `batch_size`. Received: batch_size=None")
        if not isinstance(smoothing, numbers.Real) or not 0 <= smoothing < 1:
            raise ValueError(
                f"`smoothing` must be a number in [0, 1). Received: smoothing={smoothing!r}"
            )
        if not isinstance(show, (list, tuple)) or not all(name in LOGGED for name in show):
            raise ValueError(
                f"`show` must be a list of names out of {LOGGED}. Received: show={show!r}"
            )
        for name, needs, given in (
            (_BATCH, "batch_size", batch_size),
            (_SCALE, "noise_scale", noise_scale),
        ):
            if name in show and not given:
                raise ValueError(f"show={show!r} needs `{needs}`. Received: {needs}={given!r}")
        self._show = tuple(show)
        self._batch_size = batch_size
        self._noise_scale = NoiseScale(batch_size, smoothing) if noise_scale else None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        model = self.model
        optimizer = inner(model.optimizer)
        if self._noise_scale:
            _check_noise_scale(model, optimizer)
            self._noise_scale.start(optimizer)
        self._check_order()
        for bar in self._bars:
            self._show_in(bar)
        options, norms = optimizer._accumulation.options, optimizer._accumulation.norms
        watched = [UPDATE_NORM] * options.accumulates + [SKIPPED] * options.drops
        if not watched:
            return
        norms.watch(watched + [MICRO_BATCH_NORM] * bool(self._noise_scale))
        if options.drops:
            norms.start(SKIPPED)
        if optimizer is not model.optimizer:
            _keep_out_of_files(model.optimizer)
        self._put_substitute()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        for bar in self._bars:
            _leave(bar)
        self._before = self._after = ()
        inner(self.model.optimizer)._accumulation.norms.watch(())
        for name in _FILES:
            vars(self.model.optimizer).pop(name, None)

    def on_train_batch_end(self, batch, logs=None):
        optimizer = inner(self.model.optimizer)  # on JAX, this updates the optimizer's variables
        position, length, _ = optimizer._accumulation.counts()
        updates = optimizer.completed_updates
        if self._noise_scale:
            self._noise_scale.look(optimizer, position, updates)
        self._add_to(logs, optimizer, position, length, updates)

    def on_epoch_end(self, epoch, logs=None):
        optimizer = inner(self.model.optimizer)
        # A callback may have closed the window.
        position, length, _ = optimizer._accumulation.counts()
        self._add_to(logs, optimizer, position, length, optimizer.completed_updates)

    @property
    def _bars(self):
        callbacks = [*self._before, *self._after]
        return [callback for callback in callbacks if is_named(callback, "ProgbarLogger")]

    def _check_order(self):
        """Warn if the order of the callbacks keeps logs from a callback."""
        early = [callback for callback in self._before if _reads_logs(callback)]
        if early:
            names = ", ".join(type(callback).__name__ for callback in early)
            warn(
                f"{type(self).__name__} is after {names} in `callbacks`, so {names} can't see the "
                f"logs of {type(self).__name__}. List {type(self).__name__} first.",
            )
        if any(is_named(callback, "ApplyPartialWindow") for callback in self._after):
            warn(
                f"{type(self).__name__} is before ApplyPartialWindow in `callbacks`, so the logs "
                "of an epoch don't count the update that ApplyPartialWindow makes at the end of "
                "the epoch. List ApplyPartialWindow first.",
            )

    def _show_in(self, bar):
        """Have a progress bar print only the logs in `show`, as short texts."""

        def handed(method):
            return lambda when, logs=None: method(when, self._shown(logs or {}))

        _leave(bar)  # if an earlier `fit` broke off
        for name in _HOOKS:
            vars(bar)[name] = handed(getattr(bar, name))
        if hasattr(bar, "stateful_metrics"):  # Keras 2 averages all others over the epoch
            labels = {_LABELS.get(name, name) for name in self._show}
            bar.stateful_metrics = {*bar.stateful_metrics, *labels}

    def _shown(self, logs):
        """Return what a progress bar is to print of these logs."""
        shown = {name: value for name, value in logs.items() if name not in LOGGED}
        for name in self._show:
            if name in logs:
                format_spec = ".4g" if isinstance(logs[name], float) else ".0f"
                has_length = name == "window_position" and self._length != ENDLESS
                after = f"/{self._length}" if has_length else ""
                shown[_LABELS.get(name, name)] = _Formatted(logs[name], format_spec, after)
        return shown

    def _add_to(self, logs, optimizer, position, length, updates):
        self._length = length
        if logs is None:
            return
        logs["completed_updates"] = updates
        logs["window_position"] = position
        logs["learning_rate"] = optimizer._accumulation.port.rate_in_use()
        if optimizer._accumulation.options.accumulates:
            logs[UPDATE_NORM] = optimizer._accumulation.norms.read(UPDATE_NORM)
        if optimizer._accumulation.options.drops:
            logs[SKIPPED] = int(optimizer._accumulation.norms.read(SKIPPED))
        if self._batch_size is not None and length != ENDLESS:
            logs["effective_batch"] = self._batch_size * length
        if self._noise_scale:
            logs["noise_scale"] = self._noise_scale.value


# The methods of a progress bar that get the logs of a training.
_HOOKS = "on_train_batch_end", "on_epoch_end"


def _leave(bar):
    """Have a progress bar print all logs again."""
    for name in _HOOKS:
        vars(bar).pop(name, None)


class _Formatted(float):
    """A number with a format of its own, where Keras's progress bar prints four decimals.

    The bar divides a sum by its count, which is 1, takes the mean of the result, and prints it.
    """

    def __new__(cls, value, format_spec, after):
        number = super().__new__(cls, value)
        number._format = format_spec, after
        return number

    def __truediv__(self, count):
        return type(self)(float(self) / count, *self._format)

    def mean(self, **_):
        return self

    def __format__(self, _):
        format_spec, after = self._format
        return float.__format__(self, format_spec) + after


def _check_noise_scale(model, optimizer):
    """Raise a ValueError if the windows of a training give no noise scale."""
    steps = steps_per_execution(model)
    for what, refused in (
        (f"accum_iters={optimizer.accum_iters}", not optimizer._accumulation.options.accumulates),
        ("reduction='weighted'", optimizer.reduction == "weighted"),
        ("all_reduce='per_window'", optimizer.all_reduce == "per_window"),
        ("window_transforms", optimizer.window_transforms),
        (f"steps_per_execution={steps}", steps != 1),
    ):
        if refused:
            raise ValueError(
                "`noise_scale` compares windows of several micro-batches of one size, and must "
                f"see each micro-batch. Received: {what}"
            )


def _reads_logs(callback):
    """True if a callback of Keras uses the logs of the monitor."""
    writes = ("CSVLogger", "TensorBoard", "RemoteMonitor", "History")
    if any(is_named(callback, name) for name in writes):
        return True
    if is_named(callback, "OnUpdates"):
        return any(map(_reads_logs, callback.callbacks))
    return getattr(callback, "monitor", "") in LOGGED


_FILES = "save_own_variables", "load_own_variables"


def _keep_out_of_files(wrapper):
    """Keep the norms out of a LossScaleOptimizer's files, which hold all of its variables."""

    def unwatched(method):
        def call(store):
            optimizer = inner(wrapper)
            watched = optimizer._accumulation.norms.watched
            optimizer._accumulation.norms.watch(())
            try:
                method(wrapper, store)
            finally:
                optimizer._accumulation.norms.watch(watched)

        return call

    for name in _FILES:
        if hasattr(type(wrapper), name):
            vars(wrapper)[name] = unwatched(getattr(type(wrapper), name))


def _is_count(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 1
