"""Private members of Keras that the callback uses: their list, and its check by name.

Keras has no public way to read or write a mask outside of a layer's call. Its attribute
`_keras_mask` isn't enough: JAX's tracers take none, so Keras keeps their masks in a dictionary.
"""

import types

import keras

from keras_accum.host import check_members

try:
    from keras.src.backend.common import masking as _masking
except ImportError:  # the check says so at the first use, because an optimizer works without it
    _masking = types.ModuleType("keras.src.backend.common.masking")

_OF_MASKING = "get_keras_mask", "set_keras_mask"
_OF_MODEL = (
    *("_compile_loss", "_compile_metrics", "_loss_tracker", "_flatten_layers"),
    *("_call_has_training_arg", "_compute_loss", "_losses_override", "_symbolic_build"),
)
_OF_LAYER = ("_trainable_variables",)
_OF_COMPILED_LOSS = "_flat_losses", "metrics"
_OF_METRIC = ("_fn",)  # in a metric that averages a function


def check(model):
    """Raise an ImportError that names a private member which this Keras lacks."""
    check_members(keras, _masking, _OF_MASKING)
    check_members(keras, model, _OF_MODEL)
    check_members(keras, model, _OF_LAYER)
    if model._compile_loss is not None:
        check_members(keras, model._compile_loss, _OF_COMPILED_LOSS)


def get_function(metric):
    """Return the function averaged by a metric, or None."""
    if not isinstance(metric, keras.metrics.MeanMetricWrapper):
        return None
    check_members(keras, metric, _OF_METRIC)
    return metric._fn


def get_mask(tensor):
    """Return a tensor's mask, or None."""
    check_members(keras, _masking, _OF_MASKING)
    return _masking.get_keras_mask(tensor)


def set_mask(tensor, mask):
    _masking.set_keras_mask(tensor, mask)
