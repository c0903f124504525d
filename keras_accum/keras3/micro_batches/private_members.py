"""Private members of Keras that the callback uses: their list, and its check by name."""

import keras

from keras_accum.host import check_members
from keras_accum.keras3 import masks

_OF_MODEL = (
    *("_compile_loss", "_compile_metrics", "_loss_tracker", "_flatten_layers"),
    *("_call_has_training_arg", "_compute_loss", "_losses_override", "_symbolic_build"),
)
_OF_LAYER = ("_trainable_variables",)
_OF_COMPILED_LOSS = "_flat_losses", "metrics"
_OF_METRIC = ("_fn",)  # in a metric that averages a function


def check_members_of(model):
    """Raise an ImportError that names a private member which this Keras lacks."""
    masks.check_how_keras_keeps_them()
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
