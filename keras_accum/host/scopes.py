"""Attributes of an object within a scope. No Keras is imported here."""

import contextlib

_MISSING = object()


@contextlib.contextmanager
def attribute(owner, name, value):
    """Scope in which an object has this attribute."""
    attributes = vars(owner)  # past `__setattr__`, with which Keras tracks layers
    old = attributes.get(name, _MISSING)
    attributes[name] = value
    try:
        yield
    finally:
        if old is _MISSING:
            attributes.pop(name, None)
        else:
            attributes[name] = old
