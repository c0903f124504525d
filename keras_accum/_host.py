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
            "`[jax]` or `[torch]` for Keras 3, `[legacy]` for tf_keras."
        )
    if version >= (3, 0):
        return "keras_accum.keras3"
    if version >= (2, 4):
        return "keras_accum.tf_keras"
    return "keras_accum.keras2"


def import_standalone_keras_2():
    """Keras 2.0 to 2.3 on TensorFlow 1.15."""
    version = _installed_version("keras")
    if version is None or not (2, 0) <= version < (2, 4):
        found = "no keras" if version is None else f"keras {'.'.join(map(str, version))}"
        raise ImportError(
            "keras_accum.keras2 is for standalone Keras 2.0 to 2.3: `pip install "
            "keras_accum[keras2]`, on Python 3.7. Keras 2.4 to 2.15 and tf_keras have "
            f"keras_accum.tf_keras, Keras 3 has keras_accum.keras3. Found: {found}"
        )
    import tensorflow as tf

    if not tf.__version__.startswith("1.15."):
        raise ImportError(
            "keras_accum.keras2 needs TensorFlow 1.15; with TensorFlow 2 there is "
            f"keras_accum.tf_keras. Found: tensorflow {tf.__version__}"
        )
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            "keras_accum.keras2 runs on Keras's backend tensorflow. "
            f"Found: {keras.backend.backend()}"
        )
    return keras


def import_keras_2():
    """The Keras 2 that runs on the installed TensorFlow 2: `tf.keras` itself up to 2.15."""
    import tensorflow as tf

    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if version < (2, 4):
        raise ImportError(
            "keras_accum.tf_keras needs TensorFlow 2.4 or newer. "
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
