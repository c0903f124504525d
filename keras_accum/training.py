"""What a user is warned of in a training. No host is imported here."""

import sys

from keras_accum import schedule
from keras_accum.warn import warn

_NO_UPDATE = (
    "This training ends with no update: {0}{1} micro-batches are in the open window, and the "
    "weights haven't changed. The next training continues the window. To close the window now, "
    "call `optimizer.apply_partial_window()` or use the callback ApplyPartialWindow. To close "
    "windows earlier, choose a smaller `accum_iters`."
)


class Training:
    """What an accumulation has reached when a training begins and when it ends."""

    def __init__(self, accumulation):
        self._accumulation = accumulation
        # Completed updates and position at the start of the training or, where a host doesn't know
        # the start, at the end of the last training.
        self._at_start = (0, 0)
        self._said = set()

    def warn_once(self, what, message):
        """Warn, unless this was said in an earlier training."""
        if what not in self._said:
            self._said.add(what)
            warn(message)

    def start(self):
        self._at_start = self._accumulation.progress()

    def end(self):
        """Warn if the training made no update."""
        (updates, position), now = self._at_start, self._accumulation.progress()
        self._at_start = now
        has_failed = sys.exc_info()[0] is not None  # the error says why the training ended
        if now[0] == updates and now[1] > position and not has_failed:
            length = self._accumulation.counts()[1]
            of_all = "" if length == schedule.ENDLESS else f" of {length}"
            warn(_NO_UPDATE.format(now[1], of_all))
