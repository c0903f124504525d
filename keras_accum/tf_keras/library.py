"""The Keras 2 that is meant: `tf_keras`, or the `tf.keras` that TensorFlow has inside."""

from keras_accum import host

keras = host.import_keras_2()
# Up to TensorFlow 2.10 there are no optimizers but those that are called legacy since.
legacy = getattr(keras.optimizers, "legacy", keras.optimizers)

IMPORT_KERAS = (
    "import tf_keras as keras" if keras.__name__ == "tf_keras" else "from tensorflow import keras"
)
