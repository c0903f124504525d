"""The Keras 2 of this host: `tf_keras`, or the `tf.keras` that is part of TensorFlow."""

import importlib

from keras_accum import host

keras = host.import_keras_2()
# Up to TensorFlow 2.10, the only optimizers are those that later versions call legacy.
legacy = getattr(keras.optimizers, "legacy", keras.optimizers)
# Up to TensorFlow 2.10, this name is the base class of the legacy optimizers, the only ones.
StockOptimizer = keras.optimizers.Optimizer
utilities = importlib.import_module(StockOptimizer.__module__).optimizer_utils

IMPORT_KERAS = (
    "import tf_keras as keras" if keras.__name__ == "tf_keras" else "from tensorflow import keras"
)
