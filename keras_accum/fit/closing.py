"""The part of `fit` that ends windows with their epochs, before validation and all callbacks."""

from keras_accum.engine.optimizers import list_accumulating
from keras_accum.fit.callback import Callback
from keras_accum.host import find_own_methods, warn
from keras_accum.schedule import ENDLESS

METHODS = "on_epoch_begin", "on_test_begin", "on_epoch_end"

_FROZEN = (
    "{}: frozen since the train step was traced, so its updates still move these variables, but "
    "the update of the open window doesn't. Compile the model after you set `trainable`."
)


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
    becomes what it has. A Sequence of tf_keras may have more batches in a later epoch. A call of
    several steps runs them all while data last, also where `steps_per_epoch` is no multiple.

    If that batch doesn't come, or is dropped, the window ends with the epoch all the same.

    ends_all: False without an ApplyPartialWindow: only windows with weights end.
    batches: the number of batches in an epoch, None if it's unknown.
    """

    def __init__(self, ends_all, batches=None):
        super().__init__()
        self._ends_all, self._batches, self._at_once = ends_all, batches, 0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        # A model's own step may call its optimizers any number of times.
        model = self.model
        if not find_own_methods(model, self.host.keras.Model, "train_step"):
            self._at_once = self.host.steps_per_execution(model)

    def on_train_batch_begin(self, batch, logs=None):
        left = (self._batches or 0) - batch
        is_last = 0 < left <= self._at_once  # of the calls of the train function
        if is_last and self._batches % self._at_once == 0:
            for optimizer in list_accumulating(self.model):
                if self._ends(optimizer):
                    self._shorten(optimizer, left)

    def _shorten(self, optimizer, left):
        """Let the open window close with the epoch's last batches, `left` of them."""
        accumulation = optimizer._accumulation
        if accumulation.window is None:
            return  # the first step builds it, and the epoch's end closes the window of a state
        counts = accumulation.counts()
        position = counts.position + left
        if counts.position and position < counts.length and not accumulation.find_frozen():
            accumulation.state.write_length(position)

    def _ends(self, optimizer):
        if self._ends_all:
            return True
        accumulation = optimizer._accumulation
        return accumulation.options.ends_with_epoch and accumulation.counts().length < ENDLESS
