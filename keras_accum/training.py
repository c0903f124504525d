"""What a training tells: norms for a monitor, and warnings. No Keras is imported here."""

import math
import sys
import warnings

# The norm of the averages that make the updates, and the norm of each micro-batch's gradient.
UPDATE_NORM = "gradient_norm"
MICRO_BATCH_NORM = "micro_batch_norm"
# The number of micro-batches that were dropped.
SKIPPED = "skipped_micro_batches"

_NOT_THE_USER = ("keras_accum", "keras", "tf_keras", "tensorflow", "importlib")


def warn(message):
    """Warn at the innermost line outside of this package and of Keras.

    A `stacklevel` would be a count of frames, which differs between Keras and its versions.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THE_USER:
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


class Norms:
    """The norms that train steps write, in variables that aren't part of the state.

    A norm is negative before its first value: code that searches variables for NaN must not find
    one.
    """

    def __init__(self, port):
        self._port, self._variables, self.watched = port, {}, ()

    def watch(self, names):
        """Make the train steps that are run or traced from now on write these norms."""
        for name in names:
            if name not in self._variables:
                self._variables[name] = self._port.add_norm(name)
        self.watched = tuple(names)

    @property
    def variables(self):
        """The variables of the watched norms."""
        return [self._variables[name] for name in self.watched]

    def write(self, name, tensors, switch):
        """Write the global norm of these tensors if the norm is watched and the switch is 1."""
        if name in self.watched:
            variable = self._variables[name]
            norm, old = self._port.norm(tensors), self._port.value(variable)
            variable.assign(self._port.ops.where(switch > 0, norm, old))

    def count(self, name, one):
        """Add 1 or 0 to this count if the count is watched."""
        if name in self.watched:
            variable = self._variables[name]
            old = self._port.value(variable)
            variable.assign(old + self._port.cast(one, old.dtype))

    def start(self, name):
        """Begin to count from 0."""
        self._port.write(self._variables[name], 0.0)

    def read(self, name):
        """Return a norm as a float, NaN before its first value."""
        norm = float(self._port.read(self._variables[name]))
        return math.nan if norm < 0 else norm
