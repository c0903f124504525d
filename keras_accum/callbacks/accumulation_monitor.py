"""The callback `AccumulationMonitor`, for all hosts."""

from keras_accum.callbacks.train_function import InTrainFunction
from keras_accum.convert import inner
from keras_accum.training import SKIPPED, UPDATE_NORM

# The logs that are a state, and no average over micro-batches.
_LOGS = "completed_updates", "window_position", "window_length", "learning_rate"
_LOGS += UPDATE_NORM, SKIPPED


class AccumulationMonitor(InTrainFunction):
    """Log what accumulation does in `fit`: in the progress bar, History, CSVLogger and TensorBoard.

    At the end of each micro-batch and of each epoch, the monitor adds these logs:

    - `completed_updates`: the number of updates made.
    - `window_position`: the number of micro-batches in the open window, 0 if no window is open.
    - `window_length`: the number of micro-batches that close this window, or the next one if no
      window is open; not with `accum_iters=None`.
    - `learning_rate`: the learning rate of the next update, from the schedule or from `decay`.
    - `gradient_norm`, with `accum_iters` > 1: the norm of the average gradient that made the last
      update, before clipping. NaN before the first update.
    - `skipped_micro_batches`, with `skip_nonfinite` or `skip_norm`: the number of micro-batches
      that were dropped since the start of the training.

    So Keras's progress bar, which prints numbers alone, says `completed_updates: 12.0000 -
    window_position: 3.0000 - window_length: 5.0000` after three micro-batches of five.

    On JAX, a LossScaleOptimizer keeps the last two out of reach: they are left out. A callback gets
    only the logs of callbacks before it in the list: a CSVLogger before the monitor has no such
    columns. List the monitor before callbacks that use its logs, and after ApplyPartialWindow. It
    reads from the device after each micro-batch.

    Example:

    {set_up}
    >>> from keras_accum.{host} import AccumulationMonitor, AdamAccumulate
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=4), loss="mse")
    >>> callbacks = [AccumulationMonitor()]
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=callbacks).history
    >>> history["completed_updates"], history["window_position"]
    ([2], [2])
    """

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        for bar in self.after:
            if "stateful_metrics" in vars(bar):  # tf_keras's bar averages all other logs
                bar.stateful_metrics = {*bar.stateful_metrics, *_LOGS}
        optimizer = inner(self.model.optimizer)
        accumulation, options = optimizer._accumulation, optimizer._accumulation.options
        names = [UPDATE_NORM] * options.accumulates + [SKIPPED] * options.drops
        # On JAX, these are variables of the optimizer, and a LossScaleOptimizer would save them.
        if accumulation.port.steps_return_state and optimizer is not self.model.optimizer:
            names = []
        accumulation.watched.watch(names)
        self.takes_part = bool(names)

    def on_train_end(self, logs=None):
        inner(self.model.optimizer)._accumulation.watched.watch(())

    def on_train_batch_end(self, batch, logs=None):
        self._add_to(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._add_to(logs)  # again, because a callback may have closed the window

    def _add_to(self, logs):
        optimizer = self.model.optimizer  # on JAX, this updates the optimizer's variables
        accumulation = inner(optimizer)._accumulation
        logs["completed_updates"], logs["window_position"] = accumulation.reached()
        position, length, next_length = accumulation.counts()
        if accumulation.options.accum_iters is not None:
            logs["window_length"] = length if position else next_length
        logs["learning_rate"] = accumulation.port.rate_in_use()
        for name in accumulation.watched.names:
            logs[name] = accumulation.watched.read(name)
