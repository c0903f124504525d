"""The Keras 2 of this host: `tf_keras`, or the `tf.keras` that is part of TensorFlow."""

from keras_accum import host

keras = host.import_keras_2()
# Up to TensorFlow 2.10, the only optimizers are those that later versions call legacy.
legacy = getattr(keras.optimizers, "legacy", keras.optimizers)

IMPORT_KERAS = (
    "import tf_keras as keras" if keras.__name__ == "tf_keras" else "from tensorflow import keras"
)
