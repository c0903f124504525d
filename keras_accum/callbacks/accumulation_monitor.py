"""The callback `AccumulationMonitor`, for all hosts."""

import math

from keras_accum.callbacks.train_function import InTrainFunction
from keras_accum.convert import inner
from keras_accum.schedule import ENDLESS, is_count, is_number
from keras_accum.training import MICRO_BATCH_NORM, SKIPPED, UPDATE_NORM

# The logs that are a state, and no average over micro-batches.
_LOGS = "completed_updates", "window_position", "learning_rate", UPDATE_NORM, SKIPPED
_LOGS += "effective_batch", "noise_scale"
_NO_NOISE_SCALE = (
    ": `noise_scale` compares windows of several micro-batches of one size, and must see each "
    "micro-batch."
)


class NoiseScale:
    """The noise scale from the gradients of micro-batches and of whole windows, smoothed."""

    def __init__(self, batch_size, smoothing):
        self._batch_size, self._smoothing = batch_size, smoothing
        self._trace = self._square = 0.0

    @property
    def value(self):
        """The noise scale, NaN without an estimate."""
        return self._trace / self._square if self._square > 0 else math.nan

    def start(self, accumulation):
        """Begin to look at a training."""
        self._accumulation, self._reached = accumulation, accumulation.reached()
        self._squares = []  # the squared norms of the open window's micro-batches

    def look(self):
        """Look at a micro-batch, after the train step."""
        norms, before = self._accumulation.norms, self._reached
        self._reached = updates, position = self._accumulation.reached()
        if self._reached == before:  # the micro-batch was dropped
            return
        if position == 1:  # a new window, also after a window that was closed early
            self._squares = []
        self._squares.append(norms.read(MICRO_BATCH_NORM) ** 2)
        if position == 0 and updates == before[0] + 1:
            if len(self._squares) == before[1] + 1 > 1:  # the whole window was seen
                is_sum = self._accumulation.options.reduction == "sum"
                norm = norms.read(UPDATE_NORM) / (len(self._squares) if is_sum else 1)
                self._add_window(norm**2)
            self._squares = []

    def _add_window(self, big):
        """Add the estimates from a window whose average has this squared norm."""
        count, size = len(self._squares), self._batch_size
        small = sum(self._squares) / count
        square = (count * size * big - size * small) / (count * size - size)
        trace = (small - big) / (1 / size - 1 / (count * size))
        # Both estimates are unbiased, but their ratio isn't. So the ratio is that of the averages.
        self._square += (1 - self._smoothing) * (square - self._square)
        self._trace += (1 - self._smoothing) * (trace - self._trace)


class AccumulationMonitor(InTrainFunction):
    """Log what accumulation does in `fit`: in the progress bar, History, CSVLogger and TensorBoard.

    At the end of each micro-batch and of each epoch, the monitor adds these logs:

    - `completed_updates`: the number of updates made.
    - `window_position`: the number of micro-batches in the open window, 0 if no window is open.
    - `learning_rate`: the learning rate of the next update, from the schedule or from `decay`.
    - `gradient_norm`, with `accum_iters` > 1: the norm of the average gradient that made the last
      update, before clipping. NaN before the first update.
    - `skipped_micro_batches`, with `skip_nonfinite` or `skip_norm`: the number of micro-batches
      that were dropped since the start of the training.
    - `effective_batch`, with `batch_size`: the number of samples in a window.
    - `noise_scale`, with `noise_scale=True`: the batch size, in samples, beyond which more
      accumulation pays little. NaN until there is an estimate.

    On JAX, a LossScaleOptimizer keeps the norms and the count of skips out of reach: they are left
    out. A callback gets only the logs of callbacks before it in the list: a CSVLogger before the
    monitor has no such columns. List the monitor before callbacks that use its logs, and after
    ApplyPartialWindow. It reads from the device after each micro-batch.

    The simple noise scale is B = tr(Sigma) / |G|^2, where G is the true gradient and Sigma the
    covariance of the gradient of one sample. A training with batches of B samples needs about twice
    the least possible number of samples and twice the least possible number of updates. In a window
    of k micro-batches of b samples, both are estimated without bias, and then smoothed:

        |G|^2     ~ (k b |average|^2 - b mean |micro-batch|^2) / (k b - b)
        tr(Sigma) ~ (mean |micro-batch|^2 - |average|^2) / (1 / b - 1 / (k b))

    McCandlish, Kaplan, Amodei and others, "An Empirical Model of Large-Batch Training", 2018.

    Args:
        batch_size: Integer >= 1 or None (default). The samples of a micro-batch, over all replicas.
        noise_scale: Boolean, default False. Needs `batch_size`, and windows of at least 2 equal
            micro-batches.
        smoothing: Float in [0, 1), default 0.99. The share of the earlier estimates that each
            window keeps.

    Example:

    {set_up}
    >>> from keras_accum.{host} import AccumulationMonitor, AdamAccumulate
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=4), loss="mse")
    >>> monitor = AccumulationMonitor(batch_size=10)
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[monitor]).history
    >>> [history[name][-1] for name in ("completed_updates", "window_position", "effective_batch")]
    [2, 2, 40]
    """

    def __init__(self, batch_size=None, noise_scale=False, smoothing=0.99):
        super().__init__()
        if not (batch_size is None or is_count(batch_size, 1)):
            raise ValueError(
                "`batch_size` must be an integer >= 1, the samples of a micro-batch, or None. "
                f"Received: batch_size={batch_size!r}"
            )
        if not isinstance(noise_scale, bool):
            raise TypeError(
                f"`noise_scale` must be a boolean. Received: noise_scale={noise_scale!r}"
            )
        if not (is_number(smoothing) and 0 <= smoothing < 1):
            raise ValueError(
                f"`smoothing` must be a number in [0, 1). Received: smoothing={smoothing!r}"
            )
        if noise_scale and batch_size is None:
            raise ValueError("`noise_scale` needs `batch_size`. Received: batch_size=None")
        self._batch_size = batch_size
        self._noise_scale = NoiseScale(batch_size, smoothing) if noise_scale else None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        optimizer = inner(self.model.optimizer)
        accumulation, options = optimizer._accumulation, optimizer._accumulation.options
        for bar in self.after:
            if "stateful_metrics" in vars(bar):  # tf_keras's bar averages all other logs
                bar.stateful_metrics = {*bar.stateful_metrics, *_LOGS}
        self._watched = [UPDATE_NORM] * options.accumulates + [SKIPPED] * options.drops
        # On JAX, norms are variables of the optimizer, and a LossScaleOptimizer would save them.
        if accumulation.port.steps_return_state and optimizer is not self.model.optimizer:
            self._watched = []
        if self._noise_scale:
            self._check_noise_scale(optimizer)
            self._noise_scale.start(accumulation)
        more = [MICRO_BATCH_NORM] if self._noise_scale else []
        accumulation.norms.watch([*self._watched, *more])
        self.takes_part = bool(self._watched)
        if SKIPPED in self._watched:
            accumulation.norms.start(SKIPPED)

    def _check_noise_scale(self, optimizer):
        """Raise a ValueError if the windows of a training give no noise scale."""
        steps = self.host.steps_per_execution(self.model)
        found = {
            f"accum_iters={optimizer.accum_iters}": UPDATE_NORM not in self._watched,
            "reduction='weighted'": optimizer.reduction == "weighted",
            "all_reduce='per_window'": optimizer.all_reduce == "per_window",
            "window_transforms": optimizer.window_transforms,
            f"steps_per_execution={steps}": steps != 1,
        }
        self._refuse(found, _NO_NOISE_SCALE)

    def on_train_end(self, logs=None):
        inner(self.model.optimizer)._accumulation.norms.watch(())

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer  # on JAX, this updates the optimizer's variables
        if self._noise_scale:
            self._noise_scale.look()
        self._add_to(logs, inner(optimizer)._accumulation)

    def on_epoch_end(self, epoch, logs=None):
        # Again, because a callback may have closed the window.
        self._add_to(logs, inner(self.model.optimizer)._accumulation)

    def _add_to(self, logs, accumulation):
        logs["completed_updates"], logs["window_position"] = accumulation.reached()
        length = accumulation.counts()[1]
        logs["learning_rate"] = accumulation.port.rate_in_use()
        for name in self._watched:
            logs[name] = accumulation.norms.read(name)
        if self._batch_size is not None and length != ENDLESS:
            logs["effective_batch"] = self._batch_size * length
        if self._noise_scale:
            logs["noise_scale"] = self._noise_scale.value
