"""Register our classes with a Keras, so that its files load without `custom_objects`."""

import contextlib
import importlib
import sys

from keras_accum import host


def register():
    """Register the classes for each Keras imported so far.

    For a Keras imported later, the first import of a class does so.
    """
    for name in ("keras", "tf_keras"):
        module = sys.modules.get(name)
        version = None if module is None else vars(module).get("__version__")
        if version:  # it has none while it is being imported
            with contextlib.suppress(Exception):  # importing a class raises it again
                importlib.import_module(host.module_for(host.parse_version(version)))
