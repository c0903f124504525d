"""Patches of Keras methods, only where neither a subclass nor a callback can do it.

Importing this package changes nothing: a Keras's module only plans its patches, and the first
optimizer, or the first callback with a model, puts them in. No other file assigns to Keras's
classes or modules. `docs/stability.md` lists them.
"""

import functools
import threading

_planned = {}
_lock = threading.Lock()


def plan(keras_name, *planned):
    """Plan the patches for a Keras: (owner, method name, function to make the replacement)."""
    _planned.setdefault(keras_name, planned)


def put_in(keras_name):
    """Put in the patches for a Keras, each once. After an error, the next call continues there."""
    with _lock:
        while _planned.get(keras_name):
            owner, name, patch = _planned[keras_name][0]
            original = getattr(owner, name)
            setattr(owner, name, functools.wraps(original)(patch(original)))
            _planned[keras_name] = _planned[keras_name][1:]
