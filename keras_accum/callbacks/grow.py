"""The callback `GrowWithNoiseScale`, for all hosts. No host is imported here."""

import math

from keras_accum import schedule
from keras_accum.base import inner
from keras_accum.callbacks.base import SeesTrainings
from keras_accum.callbacks.epochs import IS_SCHEDULED
from keras_accum.ranges import refusal

_NO_SCALE = (
    "GrowWithNoiseScale needs AccumulationMonitor(batch_size=..., noise_scale=True) before it in "
    "`callbacks`, and found no noise scale in the logs."
)
_OUT_OF_RANGE = (
    "GrowWithNoiseScale(maximum={0}) needs an optimizer that is constructed with `accum_iters` "
    "from 2, which the noise scale needs, to {0}. Received: accum_iters={1}"
)


class GrowWithNoiseScale(SeesTrainings):
    """An experiment: raise `accum_iters` to the noise scale that AccumulationMonitor measures.

    At the end of each epoch, with the noise scale B in samples and micro-batches of b samples:

        accum_iters <- max(accum_iters, min(round(B / b), 2 accum_iters, maximum))

    A window thus grows towards B samples, at most doubles in an epoch, and never becomes shorter.
    The new value takes effect with the next window. It is part of the state: a training that is
    continued goes on with it.

    This is an experiment, because the estimate from micro-batches is noisy, and because B is the
    critical batch size only under strong assumptions (William Merrill and others, 2025,
    arXiv:2505.23971, who measure the critical batch size itself). Take an AccumulationSchedule if
    you know a good one. The learning rate isn't changed.

    List the callback after AccumulationMonitor.

    Args:
        maximum: Integer >= 2 and below `2**31`. The greatest `accum_iters`.

    Raises:
        TypeError: If `maximum` isn't a number. At the start of training, if the model's optimizer
            isn't of this package.
        ValueError: If `maximum` is out of its range. At the start of training, if the optimizer's
            `accum_iters` is a function or an AccumulationSchedule, is None, or isn't from 2 to
            `maximum`; at its first micro-batch, if no noise scale is in the logs.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AccumulationMonitor, GrowWithNoiseScale, SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=2), loss="mse")
    >>> monitor = AccumulationMonitor(batch_size=10, noise_scale=True)
    >>> growth = GrowWithNoiseScale(maximum=16)
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[monitor, growth])
    >>> model.optimizer.accum_iters  # equal samples have no noise
    2
    """

    def __init__(self, maximum):
        super().__init__()
        if not schedule.is_length(maximum) or maximum < 2:
            raise refusal(maximum)(
                "`maximum` must be an integer >= 2 and below 2**31: the greatest `accum_iters`. "
                f"Received: maximum={maximum!r}"
            )
        self._maximum = int(maximum)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        optimizer = inner(self.model.optimizer)
        if optimizer._accumulation.options.is_scheduled:
            raise ValueError(IS_SCHEDULED.format(type(self).__name__, optimizer))
        length = optimizer.accum_iters
        if length is None or not 2 <= length <= self._maximum:
            raise ValueError(_OUT_OF_RANGE.format(self._maximum, length))

    def on_train_batch_end(self, batch, logs=None):
        if "noise_scale" not in (logs or ()):
            raise ValueError(_NO_SCALE)

    def on_epoch_end(self, epoch, logs=None):
        accumulation, scale = inner(self.model.optimizer)._accumulation, logs["noise_scale"]
        _, length, next_length = accumulation.counts()
        micro_batch = logs["effective_batch"] / length
        if math.isfinite(scale):
            grown = min(round(scale / micro_batch), 2 * next_length, self._maximum)
            accumulation.set_next_length(max(next_length, grown))
