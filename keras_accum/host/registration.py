"""Register our classes with each Keras, so that its files load without `custom_objects`."""

import contextlib
import importlib.util
import sys

from keras_accum import host

_PACKAGES = "keras", "tf_keras"


def register():
    """Register the classes for each Keras already imported, and others when they are imported."""
    for name in _PACKAGES:
        if name in sys.modules:
            _register(name)
    sys.meta_path.insert(0, _AfterImport())


def _register(name):
    version = vars(sys.modules[name]).get("__version__", "0.0")
    with contextlib.suppress(ImportError):  # importing a class raises it again
        importlib.import_module(host.module_for(host.parse_version(version)))


class _AfterImport:
    """A finder that registers our classes after the import of a Keras. The others find it."""

    is_asking = False

    def find_spec(self, name, path=None, target=None):
        if name not in _PACKAGES or name in sys.modules or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_asking = False
        if spec is not None and spec.loader is not None:
            self._register_after(spec.loader, name)
        return spec

    def _register_after(self, loader, name):
        execute = loader.exec_module

        def execute_and_register(module):
            execute(module)
            tensorflow = sys.modules.get("tensorflow")
            # Some versions of TensorFlow import Keras before they are complete themselves.
            if tensorflow is None or hasattr(tensorflow, "__version__"):
                _register(name)

        loader.exec_module = execute_and_register
