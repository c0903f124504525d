"""Find and check the user's Keras. No framework is imported before a function here is called."""

import importlib.util
import os

_INSTALL = (
    "Install one: `pip install 'keras_accum[tensorflow]'`, `'keras_accum[jax]'` or "
    "`'keras_accum[torch]'` for Keras 3, `'keras_accum[legacy]'` for tf_keras, "
    "`'keras_accum[keras2]'` for Keras 2.3 on TensorFlow 1."
)


def uses_legacy_keras():
    """True if TensorFlow's own switch points `tf.keras` at the `tf_keras` package."""
    return os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true")


def _installed_version(package):
    """Return the version of a package as a tuple, None if the package isn't installed."""
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7
        import importlib_metadata as metadata
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in version.split(".")[:2])


def _keras_version():
    """Return the version of Keras as a tuple, None if no Keras is installed.

    Another distribution, such as keras-nightly, can bring the module `keras`. Then the module has
    the version, and so has to be imported.
    """
    version = _installed_version("keras")
    if version is None and importlib.util.find_spec("keras"):
        said = getattr(importlib.import_module("keras"), "__version__", None)
        version = said and tuple(int(part) for part in said.split(".")[:2])
    return version


def module_name():
    """Return the name of our module for the user's Keras, by the rule that TensorFlow uses."""
    if uses_legacy_keras():
        return "keras_accum.tf_keras"
    version = _keras_version()
    if version is None and importlib.util.find_spec("tensorflow"):
        return "keras_accum.tf_keras"  # TensorFlow 2.4 and 2.5 contain their Keras
    if version is None:
        raise ImportError(f"keras_accum found no Keras. {_INSTALL}")
    if version >= (3, 0):
        return "keras_accum.keras3"
    if version >= (2, 4):
        return "keras_accum.tf_keras"
    return "keras_accum.keras2"


_MODULES = (
    "Use keras_accum.keras3 with Keras 3; keras_accum.tf_keras with tf_keras, or with tf.keras of "
    "TensorFlow 2.4 to 2.15; keras_accum.keras2 with standalone Keras 2.0 to 2.3 on TensorFlow 1.15"
)


def _check_keras(module, needs, first, last):
    """Raise an ImportError unless the installed Keras is at least `first` and below `last`."""
    version = _keras_version()
    if version is None or not first <= version < last:
        if version is None:
            raise ImportError(f"keras_accum.{module} found no Keras. {_INSTALL}")
        found = f"keras {'.'.join(map(str, version))}"
        raise ImportError(f"keras_accum.{module} needs {needs}. {_MODULES}. Found: {found}")


def import_keras_3():
    """Import Keras 3, on a backend that this package supports."""
    _check_keras("keras3", "Keras 3", (3, 0), (4, 0))
    import keras

    if keras.backend.backend() not in ("tensorflow", "jax", "torch"):
        raise ImportError(
            "keras_accum.keras3 runs on the Keras backends tensorflow, jax and torch. "
            f"Found: {keras.backend.backend()}"
        )
    return keras


def import_standalone_keras_2():
    """Import Keras 2.0 to 2.3 on TensorFlow 1.15."""
    _check_keras("keras2", "standalone Keras 2.0 to 2.3", (2, 0), (2, 4))
    import tensorflow as tf

    if not tf.__version__.startswith("1.15."):
        raise ImportError(
            f"keras_accum.keras2 needs TensorFlow 1.15. {_MODULES}. "
            f"Found: tensorflow {tf.__version__}"
        )
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            "keras_accum.keras2 runs on the Keras backend tensorflow. "
            f"Found: {keras.backend.backend()}"
        )
    return keras


def import_keras_2():
    """Import the Keras 2 of the installed TensorFlow 2: up to 2.15, `tf.keras` itself."""
    if not importlib.util.find_spec("tensorflow"):
        raise ImportError(f"keras_accum.tf_keras found no TensorFlow. {_INSTALL}")
    import tensorflow as tf

    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if version < (2, 4):
        raise ImportError(
            f"keras_accum.tf_keras needs TensorFlow 2.4 or newer. {_MODULES}. "
            f"Found: tensorflow {tf.__version__}"
        )
    if version < (2, 16) and not uses_legacy_keras():
        return tf.keras
    try:
        return importlib.import_module("tf_keras")
    except ImportError as error:
        raise ImportError(
            "keras_accum.tf_keras needs the package tf_keras on TensorFlow 2.16 and newer, and "
            "wherever TF_USE_LEGACY_KERAS is set: `pip install 'keras_accum[legacy]'`. "
            f"Found: tensorflow {tf.__version__}"
        ) from error
