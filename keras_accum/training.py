"""What a training tells: what a monitor logs, and warnings. No Keras is imported here."""

import math
import sys
import warnings

# What a monitor can watch: the norm of the averages that made the last update, and the number of
# micro-batches that were dropped.
UPDATE_NORM = "gradient_norm"
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


class Watched:
    """What train steps write for a monitor, in variables that aren't part of the state.

    names: what train steps write that are run or traced from now on.
    """

    def __init__(self, port):
        self._port, self._made, self.names = port, {}, ()

    def watch(self, names):
        """Watch these from now on, and nothing else; drops are counted from 0."""
        for name in names:
            if name not in self._made:
                self._made[name] = self._port.add_watched(name)
            if name == SKIPPED:
                self._port.write(self._made[name], 0.0)
        self.names = tuple(names)

    @property
    def variables(self):
        """The variables of what is watched."""
        return [self._made[name] for name in self.names]

    def write_norm(self, averages, switch):
        """Write the global norm of the averages that make an update if the switch is 1."""
        if UPDATE_NORM in self.names:
            variable = self._made[UPDATE_NORM]
            norm, old = self._port.norm(averages), self._port.value(variable)
            variable.assign(self._port.ops.where(switch > 0, norm, old))

    def count_skipped(self, skipped):
        """Add 1 or 0 to the number of micro-batches that were dropped."""
        if SKIPPED in self.names:
            variable = self._made[SKIPPED]
            old = self._port.value(variable)
            variable.assign(old + self._port.cast(skipped, old.dtype))

    def read(self, name):
        """Return a watched value as a float, NaN for a norm before its first value."""
        value = float(self._port.read(self._made[name]))
        return math.nan if value < 0 else value
