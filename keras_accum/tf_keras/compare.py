"""What `compare_with_big_batch` and the demonstration need of Keras 2 on TensorFlow 2."""

import tensorflow as tf

from keras_accum.host import check_members
from keras_accum.host.snapshot import remember_generators  # noqa: F401
from keras_accum.tensorflow.compare import device_name, in_full_precision  # noqa: F401
from keras_accum.tf_keras.imports import keras

check_members(keras, keras.layers.Layer, ["_set_dtype_policy"])
map_structure = tf.nest.map_structure


def set_policy(layer, policy):
    layer._set_dtype_policy(policy)
