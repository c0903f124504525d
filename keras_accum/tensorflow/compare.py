"""Helpers of `compare_with_big_batch` and the demonstration on TensorFlow, for every Keras."""

import contextlib
import logging

import numpy as np
import tensorflow as tf

from keras_accum.compare.put_back import Accessor

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


def _write(variable, value):
    variable.assign(value)


ACCESSORS = [
    Accessor(tf.Variable, lambda variable: np.array(variable.numpy()), _write),
    Accessor(
        tf.random.Generator,
        lambda generator: np.array(generator.state.numpy()),
        lambda generator, value: _write(generator.state, value),
        is_random=True,
        holds=lambda generator: [generator.state],
    ),
]


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


# A comparison traces more often than a training, and multiplies losses to see what clips.
_OF_COMPARISONS = "retracing", "You forgot to call LossScaleOptimizer"


@contextlib.contextmanager
def running():
    """A scope for a comparison, without the log's warnings of what only a comparison does."""

    def is_of_interest(record):
        return not any(text in record.getMessage() for text in _OF_COMPARISONS)

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
