"""What is hooked into a Keras, where no subclass and no callback can do the same.

An import of this package changes nothing: the module of a Keras `plan`s its hooks. `hook_in` is
called when the first optimizer is made, or when the first callback gets a model. No other file
assigns to a class or to a module of Keras. `docs/stability.md` lists the hooks.
"""

import functools
import threading

_planned = {}
_lock = threading.Lock()


def plan(host, *hooks):
    """Plan the hooks of a host, given by its name.

    A hook is an owner, the name of a function of the owner, and a function that returns what stands
    in its place.
    """
    _planned.setdefault(host, hooks)


def hook_in(host):
    """Put in the hooks of a host, if that hasn't been done yet."""
    with _lock:
        hooks, _planned[host] = _planned.get(host, ()), ()
        for owner, name, hook in hooks:
            original = getattr(owner, name)
            setattr(owner, name, functools.wraps(original)(hook(original)))
