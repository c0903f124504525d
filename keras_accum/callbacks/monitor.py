"""What the callback `AccumulationMonitor` does, for all hosts, and its docstring.

No host is imported here.
"""

import math
import numbers
import sys
import warnings

from keras_accum.callbacks.base import (
    SubstitutesTrainFunction,
    inner,
    steps_per_execution,
)

# Of the averages that updates are made from, and of the gradients of single micro-batches.
UPDATE_NORM = "gradient_norm"
MICRO_BATCH_NORM = "micro_batch_norm"


_BATCH, _SCALE = "effective_batch", "noise_scale"
LOGGED = ("completed_updates", "window_position", "learning_rate", UPDATE_NORM, _BATCH, _SCALE)

# What the progress bar calls some of them.
_LABELS = {"completed_updates": "updates", "window_position": "window"}


class NoiseScale:
    """tr(Sigma) / |G|^2 from the gradients of batches of two sizes, smoothed.

    With G the true gradient and Sigma the covariance of the gradient of one sample, the gradient of
    b samples has the expected square |G|^2 + tr(Sigma) / b. Two sizes give two equations.
    """

    def __init__(self, smoothing):
        self._smoothing = smoothing
        self._trace = self._square = 0.0

    def add(self, small, small_batch, big, big_batch):
        """The mean square of some small batches' gradients, and the square of a large one's."""
        square = (big_batch * big - small_batch * small) / (big_batch - small_batch)
        trace = (small - big) / (1 / small_batch - 1 / big_batch)
        # Each is unbiased, and their ratio isn't: it's taken of the averages.
        self._square += (1 - self._smoothing) * (square - self._square)
        self._trace += (1 - self._smoothing) * (trace - self._trace)

    @property
    def value(self):
        """NaN until it can be told."""
        return self._trace / self._square if self._square > 0 else math.nan


class AccumulationMonitor(SubstitutesTrainFunction):
    """Log what accumulation does in `fit`: in the progress bar, History, CSVLogger and TensorBoard.

    At the end of each micro-batch and of each epoch, the monitor adds to the logs:

        completed_updates: the number of updates made.
        window_position: the micro-batches in the open window, 0 when none is open.
        learning_rate: the rate of the next update, as the schedule or `decay` has it.
        gradient_norm: the norm of what the last update was made from, a window's average, before
            clipping; NaN before the first. Not at `accum_iters=1`.
        effective_batch: with `batch_size`, that times the length of the window, in samples.
        noise_scale: with `noise_scale=True`, the batch beyond which more accumulation pays little,
            in samples; NaN until it can be told.

    Callbacks get all of these logs, and the progress bar shows those that `show` names. In the bar,
    completed_updates is "updates: 12", and a window_position of 3 in a window of 5 is
    "window: 3/5".

    A callback gets what the callbacks before it in the list have added. So list the monitor before
    CSVLogger and TensorBoard, and before EarlyStopping, ModelCheckpoint and ReduceLROnPlateau where
    these look at one of its logs. List the monitor before PythonGate, too, and after
    ApplyPartialWindow: then the logs of an epoch count the update that closes its last window.

    The monitor reads from the device after each micro-batch. Without the monitor there is nothing
    of this in the train function. With it, the function is traced once more.

    The simple noise scale is B = tr(Sigma) / |G|^2, where G is the true gradient and Sigma the
    covariance of the gradient of one sample. A training with batches of B samples needs about twice
    as many samples and twice as many updates as the least there can be of each. Both are estimated
    from each window without bias, from the gradients of its k micro-batches of b samples and their
    average, and then smoothed:

        |G|^2     ~ (k b |average|^2 - b mean |micro-batch|^2) / (k b - b)
        tr(Sigma) ~ (mean |micro-batch|^2 - |average|^2) / (1 / b - 1 / (k b))

    Args:
        batch_size: Integer >= 1 or None (default). The samples of a micro-batch, over all replicas.
        noise_scale: Boolean, default False. Needs `batch_size` and `accum_iters` of at least 2.
        smoothing: Float in [0, 1), default 0.99. How much of the last window's averages goes into
            the next's.
        show: List of names of logs, default ("completed_updates",). What the progress bar shows, in
            this order. The default takes about 15 characters of its line.

    Raises:
        TypeError, ValueError: for an argument out of its range or of another type; at the start of
            training, if the model's optimizer is none of keras_accum, and with `noise_scale` where
            a window tells nothing about it: at `accum_iters=1`, with `reduction="weighted"`, with
            `all_reduce="per_window"` or with `steps_per_execution` other than 1.

    Warns:
        UserWarning: at the start of training, if the list has the monitor after a callback of Keras
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
        self._noise_scale = NoiseScale(smoothing) if noise_scale else None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        model = self.model
        optimizer = inner(model.optimizer)
        if self._noise_scale:
            self._check_noise_scale(model, optimizer)
        callbacks = _callbacks_beside(self)
        self._check_order(callbacks)
        self._bars = [callback for callback in callbacks if _is(callback, "ProgbarLogger")]
        for bar in self._bars:
            self._show_in(bar)
        self._seen = optimizer.window_position, optimizer.completed_updates
        self._squares = []  # of the open window's micro-batches
        if not optimizer._accumulates:
            return
        optimizer._watch([UPDATE_NORM] + [MICRO_BATCH_NORM] * bool(self._noise_scale))
        if optimizer is not model.optimizer:
            _keep_out_of_files(model.optimizer)
        self._put_substitute()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        for bar in self._bars:
            _leave(bar)
        inner(self.model.optimizer)._watch(())
        for name in _FILES:
            vars(self.model.optimizer).pop(name, None)

    def on_train_batch_end(self, batch, logs=None):
        optimizer = inner(self.model.optimizer)  # on JAX this brings its variables up to date
        position, length, _ = optimizer._count_window()
        updates = optimizer.completed_updates
        if self._noise_scale:
            self._look_at_micro_batch(optimizer, position, updates)
        self._add_to(logs, optimizer, position, length, updates)

    def on_epoch_end(self, epoch, logs=None):
        optimizer = inner(self.model.optimizer)
        position, length, _ = optimizer._count_window()  # callbacks may have closed it
        self._add_to(logs, optimizer, position, length, optimizer.completed_updates)

    def _check_noise_scale(self, model, optimizer):
        steps = steps_per_execution(model)
        for what, refused in (
            (f"accum_iters={optimizer.accum_iters}", not optimizer._accumulates),
            ("reduction='weighted'", optimizer.reduction == "weighted"),
            ("all_reduce='per_window'", optimizer.all_reduce == "per_window"),
            (f"steps_per_execution={steps}", steps != 1),
        ):
            if refused:
                raise ValueError(
                    "`noise_scale` compares windows of several micro-batches of one size, each of "
                    f"which it must see. Received: {what}"
                )

    def _look_at_micro_batch(self, optimizer, position, updates):
        last_position, last_updates = self._seen
        self._seen = position, updates
        if self._seen == (last_position, last_updates):  # it was dropped
            return
        if position == 1:  # also after a window that was closed early
            self._squares = []
        self._squares.append(optimizer._read_norm(MICRO_BATCH_NORM) ** 2)
        if self._seen == (0, last_updates + 1):
            count = len(self._squares)
            if count == last_position + 1 > 1:  # all of the window was seen, and there is one
                big = optimizer._read_norm(UPDATE_NORM)
                if optimizer.reduction == "sum":
                    big /= count
                small = sum(self._squares) / count
                size = self._batch_size
                self._noise_scale.add(small, size, big**2, count * size)
            self._squares = []

    def _check_order(self, callbacks):
        """Warn if callbacks are listed in an order in which logs don't reach them."""
        here = next((i for i, callback in enumerate(callbacks) if callback is self), 0)
        early = [callback for callback in callbacks[:here] if _reads_logs(callback)]
        if early:
            names = ", ".join(type(callback).__name__ for callback in early)
            warnings.warn(
                f"{type(self).__name__} is after {names} in `callbacks`, so that what it logs "
                f"doesn't reach {names}. List {type(self).__name__} first.",
                stacklevel=3,
            )
        if any(_is(callback, "ApplyPartialWindow") for callback in callbacks[here:]):
            warnings.warn(
                f"{type(self).__name__} is before ApplyPartialWindow in `callbacks`, so that the "
                "logs of an epoch don't count the update that ApplyPartialWindow makes at its end. "
                "List ApplyPartialWindow first.",
                stacklevel=3,
            )

    def _show_in(self, bar):
        """Have a progress bar print what is in `show`, as short texts, in place of all we log."""

        def handed(method):
            return lambda when, logs=None: method(when, self._shown(logs or {}))

        _leave(bar)  # after a `fit` that broke off
        for name in _HOOKS:
            vars(bar)[name] = handed(getattr(bar, name))
        if hasattr(bar, "stateful_metrics"):  # on Keras 2, what isn't averaged over the epoch
            labels = {_LABELS.get(name, name) for name in self._show}
            bar.stateful_metrics = {*bar.stateful_metrics, *labels}

    def _shown(self, logs):
        shown = {name: value for name, value in logs.items() if name not in LOGGED}
        for name in self._show:
            if name in logs:
                value = logs[name]
                text = f"{value:.4g}" if isinstance(value, float) else f"{value}"
                if name == "window_position":
                    text += f"/{self._length}"
                shown[_LABELS.get(name, name)] = _Printed(value, text)
        return shown

    def _add_to(self, logs, optimizer, position, length, updates):
        self._length = length
        if logs is None:
            return
        logs["completed_updates"] = updates
        logs["window_position"] = position
        logs["learning_rate"] = optimizer._rate_in_use()
        if optimizer._accumulates:
            logs[UPDATE_NORM] = optimizer._read_norm(UPDATE_NORM)
        if self._batch_size is not None:
            logs["effective_batch"] = self._batch_size * length
        if self._noise_scale:
            logs["noise_scale"] = self._noise_scale.value


# What a progress bar is told in a training.
_HOOKS = "on_train_batch_end", "on_epoch_end"


def _leave(bar):
    """Have a progress bar print all logs again."""
    for name in _HOOKS:
        vars(bar).pop(name, None)


class _Printed(float):
    """A number that Keras's progress bar prints as this text, in place of four decimals.

    The bar divides it by a count of 1, takes the mean of that and formats it.
    """

    def __new__(cls, value, text):
        number = super().__new__(cls, value)
        number._text = text
        return number

    def __truediv__(self, count):
        return self

    def mean(self, **_):
        return self

    def __format__(self, spec):
        return self._text


def _callbacks_beside(callback):
    """The callbacks of the `fit` that calls this one, in their order. Keras tells it none of them.

    Empty where something else than Keras calls the callback.
    """
    frame = sys._getframe()
    while frame is not None:
        found = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(found, list) and any(one is callback for one in found):
            return found
        frame = frame.f_back
    return []


def _reads_logs(callback):
    """True if a callback of Keras has a use for what is logged here."""
    writes = ("CSVLogger", "TensorBoard", "RemoteMonitor", "History")
    return any(_is(callback, name) for name in writes) or getattr(callback, "monitor", "") in LOGGED


def _is(callback, name):
    """True if a callback is of a class of this name, which each host has."""
    return any(cls.__name__ == name for cls in type(callback).__mro__)


_FILES = "save_own_variables", "load_own_variables"


def _keep_out_of_files(wrapper):
    """Have a LossScaleOptimizer's files without the norms, where they are among its variables."""

    def unwatched(method):
        def call(store):
            optimizer = inner(wrapper)
            watched = optimizer._watched
            optimizer._watch(())
            try:
                method(wrapper, store)
            finally:
                optimizer._watch(watched)

        return call

    for name in _FILES:
        if hasattr(type(wrapper), name):
            vars(wrapper)[name] = unwatched(getattr(type(wrapper), name))


def _is_count(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 1
