"""Warnings that point at the user's line. No Keras is imported here."""

import sys
import warnings

_NOT_THE_USER = ("keras_accum", "keras", "tf_keras", "tensorflow", "importlib")


def warn(message):
    """Warn at the innermost line outside this package and Keras, whatever its frame's depth."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THE_USER:
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
