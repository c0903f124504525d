"""Which Keras the user has. Nothing is imported here before it is asked for."""

import importlib.util
import os


def uses_legacy_keras():
    """Whether TensorFlow's own switch points `tf.keras` at the `tf_keras` package."""
    return os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true")


def _installed_version(package):
    """The version of an installed package as a tuple, None when there is none."""
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7
        import importlib_metadata as metadata
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in version.split(".")[:2])


def module_name():
    """This package's module for the user's Keras, by the rule that TensorFlow itself uses."""
    if uses_legacy_keras():
        return "keras_accum.tf_keras"
    version = _installed_version("keras")
    if version is None and importlib.util.find_spec("tensorflow"):
        return "keras_accum.tf_keras"  # TensorFlow 2.4 and 2.5 have their Keras inside
    if version is None:
        raise ImportError(
            "keras_accum found no Keras. Install one: `pip install keras_accum[tensorflow]`, "
            "`[jax]` or `[torch]` for Keras 3, `[legacy]` for tf_keras, `[keras2]` for Keras 2.3 "
            "on TensorFlow 1."
        )
    if version >= (3, 0):
        return "keras_accum.keras3"
    if version >= (2, 4):
        return "keras_accum.tf_keras"
    return "keras_accum.keras2"


_MODULES = (
    "Keras 3 has keras_accum.keras3; tf_keras, and tf.keras of TensorFlow 2.4 to 2.15, have "
    "keras_accum.tf_keras; standalone Keras 2.0 to 2.3 on TensorFlow 1.15 has keras_accum.keras2"
)


def _check_keras(module, needs, first, last):
    """Raise an ImportError unless the installed Keras is from `first` on and before `last`."""
    version = _installed_version("keras")
    if version is None or not first <= version < last:
        found = "no keras" if version is None else f"keras {'.'.join(map(str, version))}"
        raise ImportError(f"keras_accum.{module} needs {needs}. {_MODULES}. Found: {found}")


def import_keras_3():
    """Keras 3 on a backend that the package has."""
    _check_keras("keras3", "Keras 3", (3, 0), (4, 0))
    import keras

    if keras.backend.backend() not in ("tensorflow", "jax", "torch"):
        raise ImportError(
            "keras_accum.keras3 runs on the Keras backends tensorflow, jax and torch. "
            f"Found: {keras.backend.backend()}"
        )
    return keras


def import_standalone_keras_2():
    """Keras 2.0 to 2.3 on TensorFlow 1.15."""
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
    """The Keras 2 that runs on the installed TensorFlow 2: `tf.keras` itself up to 2.15."""
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
            "wherever TF_USE_LEGACY_KERAS is set: `pip install keras_accum[legacy]`. "
            f"Found: tensorflow {tf.__version__}"
        ) from error
