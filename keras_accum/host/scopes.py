"""Attributes of an object within a scope, undone also if Ctrl-C comes in the scope's end."""

import functools
import threading

_MISSING = object()


def undone(function):
    """Decorate a function to undo, at its end, each `attribute` still set.

    Ctrl-C may interrupt a scope's end. It comes once, so one of the two ends is complete.
    """

    @functools.wraps(function)
    def call(*arguments, **keywords):
        before = len(_open.scopes)
        try:
            return function(*arguments, **keywords)
        finally:
            for scope in reversed(_open.scopes[before:]):
                scope.__exit__()

    return call


class _OpenScopes(threading.local):
    """The `attribute` scopes in which this thread is, the innermost last."""

    def __init__(self):
        self.scopes = []


_open = _OpenScopes()


class attribute:  # named as a scope, like `contextlib.suppress`
    """Scope in which an object has this attribute; to be used in functions that are `undone`."""

    def __init__(self, owner, name, value):
        self._attributes, self._name, self._value = vars(owner), name, value

    def __enter__(self):
        self._old = self._attributes.get(self._name, _MISSING)
        self._scopes = _open.scopes  # kept, because the scope may end in another thread
        self._scopes.append(self)
        self._attributes[self._name] = self._value

    def __exit__(self, *error):
        while self in self._scopes:  # otherwise, it is undone already
            # First a scope of the same attribute inside, if Ctrl-C came in its end.
            last = next(scope for scope in reversed(self._scopes) if scope._has_place_of(self))
            last._put_back()
            self._scopes.remove(last)

    def _has_place_of(self, other):
        return self._attributes is other._attributes and self._name == other._name

    def _put_back(self):
        if self._old is _MISSING:
            self._attributes.pop(self._name, None)
        else:
            self._attributes[self._name] = self._old
