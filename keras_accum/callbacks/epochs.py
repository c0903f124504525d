"""The callback `AccumulateByEpoch`, for all hosts. No host is imported here."""

from keras_accum.callbacks.base import SeesTrainings, accumulating_in
from keras_accum.schedule import AccumulationSchedule

IS_SCHEDULED = (
    "{} needs an optimizer whose `accum_iters` is a number, and this optimizer has a function or "
    "an AccumulationSchedule, which counts updates: leave the callback out, or construct the "
    "optimizer with a number. Received: optimizer={!r}"
)
_NO_ACCUMULATORS = (
    "AccumulateByEpoch({0}) needs accumulators, and an optimizer with accum_iters=1 has none: "
    "construct the optimizer with accum_iters={1}. The callback sets accum_iters=1 where the "
    "dictionary says 1. Received: optimizer={2!r}"
)


class AccumulateByEpoch(SeesTrainings):
    """Set `accum_iters` of the model's optimizer at the start of an epoch.

    The new value takes effect with the next window: a window that is open when an epoch ends keeps
    its length. List ApplyPartialWindow, too, if no window should go on in the next epoch. For
    lengths that depend on the number of updates, construct the optimizer with an
    AccumulationSchedule instead. In a MultiOptimizer, the callback sets the value of each optimizer
    of this package.

    Args:
        lengths: Dictionary `{{epoch: accum_iters}}`, or a list of such pairs. An epoch has the
            value of the greatest key that isn't above its number, counted from 0. Epochs are
            integers >= 0, and one of them is 0. Values are integers >= 1 and below `2**31`.

    Raises:
        TypeError: If `lengths` isn't a dictionary or a list of pairs, or has something that isn't a
            number. At the start of training, if the model's optimizer isn't of this package.
        ValueError: If a number is out of its range, or if 0 isn't among the epochs. At the start of
            training, if the optimizer's `accum_iters` is a function or an AccumulationSchedule, or
            if the optimizer was constructed with `accum_iters=1` and `lengths` has another value.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AccumulateByEpoch, SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((40, 3)), np.ones((40, 1))
    >>> growth = AccumulateByEpoch({{0: 1, 2: 4}})
    >>> history = model.fit(x, y, batch_size=10, epochs=3, verbose=0, callbacks=[growth])
    >>> model.optimizer.completed_updates  # 4 + 4 + 1
    9
    """

    _takes_several = True

    def __init__(self, lengths):
        super().__init__()
        self._schedule = AccumulationSchedule(lengths)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        for optimizer in accumulating_in(self.model.optimizer):
            options, longest = optimizer._accumulation.options, self._schedule.longest
            if options.is_scheduled:
                raise ValueError(IS_SCHEDULED.format(type(self).__name__, optimizer))
            if longest > 1 and not options.accumulates:
                lengths = dict(self._schedule.get_config()["lengths"])
                raise ValueError(_NO_ACCUMULATORS.format(lengths, longest, optimizer))

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        for optimizer in accumulating_in(self.model.optimizer):
            optimizer._accumulation.set_next_length(self._schedule(epoch))
