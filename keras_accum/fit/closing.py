"""The part of `fit` that ends windows with their epochs, before validation and all callbacks."""

from typing import Any, NamedTuple

from keras_accum.engine.optimizers import list_accumulating
from keras_accum.fit.callback import Callback
from keras_accum.host import find_own_methods, warn
from keras_accum.schedule import ENDLESS

METHODS = "on_epoch_begin", "on_test_begin", "on_epoch_end"
# Of what `fit` adds, where a train step may close a window that isn't whole.
IN_EPOCH = "on_train_batch_begin", "on_train_batch_end"

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

    An update between train steps is a program of its own, or slow eager operations. So on Keras 3,
    where the number of batches in the epoch is known, the last one closes the window: its length
    becomes what it has. A Sequence of tf_keras may have more batches in a later epoch.

    If that batch doesn't come, or is dropped, the window ends with the epoch all the same.

    ends_all: False without an ApplyPartialWindow: only windows with weights end.
    batches: the number of batches in an epoch, None if it's unknown.
    ended: the windows that it ended without one.
    """

    def __init__(self, ends_all, batches=None):
        super().__init__()
        self._ends_all, self._batches, self.ended = ends_all, batches, []
        self._of_epoch, self._at_once, self._done = [], 0, 0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        # A model's own step may call its optimizers any number of times.
        model = self.model
        if not find_own_methods(model, self.host.keras.Model, "train_step"):
            self._at_once = self.host.steps_per_execution(model)

    def on_train_batch_begin(self, batch, logs=None):
        left = (self._batches or 0) - batch
        if 0 < left <= self._at_once:  # the last call of the train function
            for optimizer in list_accumulating(self.model):
                if self._ends(optimizer):
                    self._shorten(optimizer, left)

    def on_train_batch_end(self, batch, logs=None):
        self._done = batch + 1

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self._batches = self._batches or self._done  # Keras takes no more in later epochs
        self._of_epoch = []

    def _shorten(self, optimizer, left):
        """Let the open window close with the epoch's last batches, `left` of them."""
        accumulation = optimizer._accumulation
        counts = accumulation.counts()
        position = counts.position + left
        if counts.position and position < counts.length and not accumulation.find_frozen():
            self._note(optimizer, position, counts.length)
            accumulation.shorten_window(position)

    def _note(self, optimizer, position, length):
        if not self._ends_all and optimizer not in self._of_epoch:
            self._of_epoch.append(optimizer)
            self.ended.append(EndedWindow(optimizer, position, length))

    def _ends(self, optimizer):
        if self._ends_all:
            return True
        accumulation = optimizer._accumulation
        return accumulation.options.ends_with_epoch and accumulation.counts().length < ENDLESS

    def _end(self, optimizer):
        counts = None if self._ends_all else optimizer._accumulation.counts()
        if counts is not None and counts.position:
            self._note(optimizer, counts.position, counts.length)
        super()._end(optimizer)
