"""Helpers of `compare_with_big_batch` and the demonstration on TensorFlow, for every Keras."""

import contextlib
import logging

import tensorflow as tf

_CLIPS = (
    "Embeddings on TensorFlow ({}): the gradients are equal, but stock {} clips the occurrences of "
    "a row before it adds them, and ours their sum. {}"
)


def list_embeddings(layers, keras):
    """Return the names of embeddings that train."""
    embeddings = [layer for layer in layers if isinstance(layer, keras.layers.Embedding)]
    return [layer.name for layer in embeddings if layer.trainable_weights]


def note_clipping(names, optimizers, remedy):
    """Return a note in a list about clipped gradients of embeddings, if an optimizer clips.

    names: the embeddings' names as text, "" if there are none.
    """
    arguments = "clipnorm", "clipvalue", "global_clipnorm"
    for optimizer in optimizers:
        if names and any(getattr(optimizer, name, None) for name in arguments):
            stock = optimizer._stock_class.__name__
            return [_CLIPS.format(names, stock, remedy)]
    return []


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


@contextlib.contextmanager
def running():
    """A scope for a comparison, which traces more often than a training, without a log of it."""

    def is_of_interest(record):
        return "retracing" not in record.getMessage()

    log = logging.getLogger("tensorflow")
    log.addFilter(is_of_interest)
    try:
        with in_full_precision():
            yield
    finally:
        log.removeFilter(is_of_interest)


def device_name():
    """Return the name of the GPU, or "CPU"."""
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return "CPU"
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
