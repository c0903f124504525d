"""Patches of Keras methods, only where neither a subclass nor a callback can do it.

Importing this package changes nothing: a Keras's module only plans its hooks, and the first
optimizer, or the first callback with a model, puts them in. No other file assigns to Keras's
classes or modules. `docs/stability.md` lists the hooks.
"""

import functools
import threading

_planned = {}
_lock = threading.Lock()


def plan(keras_name, *hooks):
    """Plan the hooks for a Keras: (owner, method name, function to make the replacement)."""
    _planned.setdefault(keras_name, hooks)


def hook_in(keras_name):
    """Put in the hooks for a Keras, each once. After an error, the next call continues there."""
    with _lock:
        while _planned.get(keras_name):
            owner, name, hook = _planned[keras_name][0]
            original = getattr(owner, name)
            setattr(owner, name, functools.wraps(original)(hook(original)))
            _planned[keras_name] = _planned[keras_name][1:]
