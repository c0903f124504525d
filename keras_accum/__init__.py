"""Gradient accumulation for Keras: the weights of a large batch in the memory of a small one.

`from keras_accum import AdamAccumulate` imports the class for the Keras that is in use. `import
keras_accum` alone imports no framework. `keras_accum.keras3`, `keras_accum.tf_keras` and
`keras_accum.keras2` name the Keras explicitly.
"""

from keras_accum import names as _names

__version__ = "0.2.0"

__all__ = sorted(_names.WHERE)


def __getattr__(name):
    if name not in __all__ and name not in _names.RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from keras_accum import host

    return getattr(importlib.import_module(host.module_name()), name)


def __dir__():
    return sorted(list(globals()) + __all__)
