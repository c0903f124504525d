"""What `compare_with_big_batch` does on TensorFlow, for every Keras."""

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
