"""Helpers of `compare_with_big_batch` and the demonstration on TensorFlow, for every Keras."""

import contextlib

import tensorflow as tf


@contextlib.contextmanager
def in_full_precision():
    """A scope without TensorFloat-32 on GPUs: its rounding would show."""
    config = tf.config.experimental
    before = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(before)


def device_name():
    """Return the name of the GPU, or "CPU"."""
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return "CPU"
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
