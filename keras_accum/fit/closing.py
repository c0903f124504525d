"""The part of `fit` that ends windows with their epochs, before validation and all callbacks."""

from typing import Any, NamedTuple

from keras_accum.convert import list_accumulating
from keras_accum.fit.callback import Callback
from keras_accum.host import warn
from keras_accum.schedule import ENDLESS

METHODS = "on_epoch_begin", "on_test_begin", "on_epoch_end"

_FROZEN = (
    "{}: frozen since the train step was traced, so its updates still move these variables, but "
    "the update of the open window doesn't. Compile the model after you set `trainable`."
)


class EndedWindow(NamedTuple):
    """A window that ended with its epoch, before it was whole."""

    optimizer: Any
    position: int  # the micro-batches that it had
    length: int


class EndsWindows(Callback):
    """A callback that updates with the leftover micro-batches at the end of each epoch."""

    _takes_several = True
    _is_in_epoch = False

    def _check_optimizer(self, optimizer):
        # On TensorFlow, MultiOptimizer(function) has no optimizers before its first step.
        if getattr(optimizer, "optimizers", None) != []:
            super()._check_optimizer(optimizer)

    def on_epoch_begin(self, epoch, logs=None):
        self._is_in_epoch = True

    def on_test_begin(self, logs=None):
        super().on_test_begin(logs)
        self.end_windows()

    def on_epoch_end(self, epoch, logs=None):
        self.end_windows()
        self._is_in_epoch = False

    def end_windows(self):
        if self._trains and self._is_in_epoch:
            for optimizer in list_accumulating(self.model):
                if self._ends(optimizer):
                    self._end(optimizer)

    def _ends(self, optimizer):
        """Return True if this optimizer's windows end with their epochs."""
        return True

    def _end(self, optimizer):
        self._warn_of_frozen(optimizer._accumulation)
        optimizer.apply_partial_window()

    def _warn_of_frozen(self, accumulation):
        """Warn if the traced train step still trains a layer that is frozen now."""
        names = accumulation.find_frozen() if self.host.is_traced else []
        if names:
            warn(_FROZEN.format(", ".join(names)))


class EndsWindowsFirst(EndsWindows):
    """The one that `fit` adds, whose hooks run before those of all callbacks.

    ends_all: False without an ApplyPartialWindow: only windows with weights end.
    ended: the windows that it ended without one.
    """

    def __init__(self, ends_all):
        super().__init__()
        self._ends_all, self.ended = ends_all, []

    def _ends(self, optimizer):
        if self._ends_all:
            return True
        accumulation = optimizer._accumulation
        return accumulation.options.ends_with_epoch and accumulation.counts().length < ENDLESS

    def _end(self, optimizer):
        counts = None if self._ends_all else optimizer._accumulation.counts()
        if counts is not None and counts.position:
            self.ended.append(EndedWindow(optimizer, counts.position, counts.length))
        super()._end(optimizer)
