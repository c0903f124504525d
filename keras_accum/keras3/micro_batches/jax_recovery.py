"""Recovery from a failed train step on JAX, for `MicroBatches("auto")`."""

import sys

import jax
import keras
import numpy as np

from keras_accum.host import check_members
from keras_accum.keras3.jax import list_state, put_back

_TAKEN_BACK = (
    'MicroBatches("auto"): this training ended in or after batch {} (counted from 0 over all '
    "epochs), when JAX had deleted the weights, and only batches of a new shape are copied. "
    "Weights, layer states and optimizer are now as before batch {}. If you have a later "
    "checkpoint, load it. The error: {}"
)


class Recovery:
    """Gives a model its state back if a train step fails. Each training has its own.

    A program that can't get its memory has deleted the state already. So the state is copied to the
    host before a new program, and Python waits for it; a program that ran needs neither. The copy
    stays until the training ends: JAX may report an error late, in a callback or at the end.

    Call `before` with the state of a batch, then `run` until it fits, and `after` each error.
    """

    def __init__(self, model):
        check_members(keras, model, ["jax_state_sync"])
        self._model, self._batch, self._state = model, -1, None
        self._copy = self._copied_at = None  # functions that return arrays, and their batch
        self._waits = False  # for the program that runs
        # `fit` may be called in an `except` block. The error itself would keep its frames.
        self._error_around = id(sys.exc_info()[1])

    def before(self, state):
        """Begin a batch with this state."""
        self._state, self._batch, self._waits = state, self._batch + 1, False
        if self._copy is None:  # another model may have taken memory since the last training
            vars(self._model)["jax_state_sync"] = self._sync
            self._waits = True
            self._copy_state()

    def end_data(self):
        """Take back `before`: an epoch has ended, and there was no batch."""
        self._batch -= 1

    def run(self, train_function, batch):
        """Call a train function on a batch, and wait for the results of a new program."""
        results = train_function(self._state, iter([batch]))
        if self._waits:
            jax.block_until_ready(results)
        return results

    def note_call(self, state):
        """Note that Python calls the step: to trace a new program or, without `jit`, to run it."""
        self._waits = True
        if isinstance(jax.tree.leaves(state)[0], jax.core.Tracer):
            self._copy_state()

    def after(self, error):
        """Give the model the state before the batch; if it is lost, the last copy and an error."""
        if not _find_error(self._state):
            put_back(self._model, self._state)  # a new train function reads shardings there
        elif self._copy:
            self._restore()
            if self._copied_at != self._batch:
                self._raise(error)

    def end(self, error=None):
        """End the training, and raise an error if a step failed that had returned already."""
        vars(self._model).pop("jax_state_sync", None)
        lost = self._copy and _find_error([v._value for v in list_state(self._model)])
        if lost:
            self._restore()
            self._model._jax_state = None  # as Keras does at the end
        self._state = self._copy = None
        if lost:
            self._raise(error or lost)

    def _sync(self):
        """Do as Keras's `jax_state_sync`, which is also called when an error ends a training."""
        type(self._model).jax_state_sync(self._model)
        error = sys.exc_info()[1]
        if error is not None and id(error) != self._error_around:
            self.end(error)

    def _copy_state(self):
        """Copy the state to the host: JAX deletes its arrays when a program starts."""
        if self._copied_at != self._batch:
            self._copy = jax.tree.map(_copy_to_host, self._state)
            self._copied_at = self._batch

    def _restore(self):
        self._state = jax.tree.map(lambda give_back: give_back(), self._copy)
        put_back(self._model, self._state)

    def _raise(self, error):
        """Raise an error that names the batch before which the restored state was copied."""
        cls = RuntimeError if isinstance(error, Exception) else type(error)
        text = str(error) or type(error).__name__
        raise cls(_TAKEN_BACK.format(self._batch, self._copied_at, text)) from error


def _copy_to_host(array):
    """Copy an array to the host. Return a function that gives it back, placed as it was."""
    value, sharding = np.array(array), array.sharding if array.committed else None
    return lambda: jax.device_put(value, sharding)


def _find_error(state):
    """Return the error of an array that is deleted or couldn't be computed, else None."""
    try:
        jax.block_until_ready(state)
    except RuntimeError as error:
        return error
    return None
