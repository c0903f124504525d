"""The callback `AccumulationMonitor`."""

from keras_accum.fit.callback import Callback

# Logs to show as they are, without averaging.
_LOGS = (
    *("completed_updates", "window_position", "window_length", "learning_rate"),
    "skipped_micro_batches",
)
_RATES = "learning_rate", "lr"  # of Keras 3 and of tf_keras, in its callbacks' logs


class _Whole(float):
    """A number that Keras's progress bar, which formats four decimals, shows as an integer."""

    def mean(self, *axes, **keywords):
        return self

    def __format__(self, spec):
        return str(int(self))


class _Count(int):
    """An int that Keras's progress bar shows as an integer.

    The bar takes the NumPy mean, and divides by 1: Keras 3 in this order, Keras 2 in the other.
    """

    def mean(self, *axes, **keywords):
        return self

    def __truediv__(self, divisor):
        return _Whole(self) if divisor == 1 else int(self) / divisor

    def __reduce__(self):
        return int, (int(self),)  # a pickled history needs no keras_accum


class AccumulationMonitor(Callback):
    """Log the progress of windows to the progress bar, History, CSVLogger and TensorBoard.

    After each micro-batch and each epoch, the monitor adds these logs:

    - `completed_updates`: the number of updates made.
    - `window_position`: the number of micro-batches in the open window, 0 between windows.
    - `window_length`: the length of this window, or of the next one if none is open; absent with
      `accum_iters=None`.
    - `learning_rate`: the learning rate for the next update, from the schedule or `decay`. At the
      end of an epoch, an entry of Keras stays, such as that of ReduceLROnPlateau.
    - `skipped_micro_batches`, with `skip_nonfinite` or `skip_norm`: the micro-batches dropped since
      training began. With `steps_per_execution` above 1, executions in which all were dropped.

    After three micro-batches in a window of five, the progress bar shows `completed_updates:
    12 - window_position: 3 - window_length: 5`.

    List the monitor before callbacks that use its logs, such as CSVLogger. It reads from the device
    after each micro-batch.

    Example:

    {set_up}
    >>> from keras_accum.{module} import AccumulationMonitor, AdamAccumulate
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=4), loss="mse")
    >>> callbacks = [AccumulationMonitor()]
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=callbacks).history
    >>> history["completed_updates"], history["window_position"]  # of 4, 4 and 2 micro-batches
    ([3], [0])
    """

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        for bar in self.after:
            if "stateful_metrics" in vars(bar):  # tf_keras's bar averages all other logs
                bar.stateful_metrics = {*bar.stateful_metrics, *_LOGS}
        self._reached, self._skipped = self._accumulation().read_progress(), 0
        self._rate = None  # the one logged last

    def on_train_batch_end(self, batch, logs=None):
        before, self._reached = self._reached, self._accumulation().read_progress()
        self._skipped += self._reached == before  # a dropped micro-batch moves no counter
        self._rate = self._accumulation().store.rate_in_use()
        self._add_to(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._reached = self._accumulation().read_progress()  # a callback may have updated
        # A callback before this one may have logged the epoch's rate, and set the next epoch's.
        rates = [logs[n] for n in _RATES if n in logs and logs[n] is not self._rate]
        self._rate = float(rates[0]) if rates else self._accumulation().store.rate_in_use()
        self._add_to(logs)

    def _accumulation(self):
        return self._find_optimizer()._accumulation

    def _add_to(self, logs):
        accumulation = self._accumulation()
        logs["completed_updates"], logs["window_position"] = map(_Count, self._reached)
        if accumulation.options.accum_iters is not None:
            logs["window_length"] = _Count(accumulation.counts().length)
        logs["learning_rate"] = self._rate
        if accumulation.options.drops:
            logs["skipped_micro_batches"] = _Count(self._skipped)
