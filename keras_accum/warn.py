"""Warnings that point at the line of the user. No host is imported here."""

import sys
import warnings

_NOT_THE_USER = {"keras_accum", "keras", "tf_keras", "tensorflow", "importlib"}


def warn(message, category=UserWarning):
    """Warn at the innermost line outside of this package and of Keras.

    Python hides a DeprecationWarning unless it points into the script that runs. A `stacklevel`
    would be a count of frames, which differs between Keras and its versions.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame) in _NOT_THE_USER:
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, category, frame.f_code.co_filename, frame.f_lineno, _name(frame), registry
    )


def _package(frame):
    return _name(frame).partition(".")[0]


def _name(frame):
    return frame.f_globals.get("__name__", "<string>")
