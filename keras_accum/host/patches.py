"""Patches of Keras methods, only where neither a subclass nor a callback can do it.

Importing this package changes nothing: a Keras's module only plans its hooks, and the first
optimizer, or the first callback with a model, puts them in. No other file assigns to Keras's
classes or modules. `docs/stability.md` lists the hooks.
"""

import functools
import threading

_planned = {}
_lock = threading.Lock()


def plan(host, *hooks):
    """Plan a host's hooks: (owner, method name, function to make the replacement)."""
    _planned.setdefault(host, hooks)


def hook_in(host):
    """Put in a host's hooks, once."""
    with _lock:
        hooks, _planned[host] = _planned.get(host, ()), ()
        for owner, name, hook in hooks:
            original = getattr(owner, name)
            setattr(owner, name, functools.wraps(original)(hook(original)))
