"""The hook on Keras 2's models, which know their layers and losses. An optimizer doesn't."""

import keras

from keras_accum.engine.models import note
from keras_accum.engine.optimizers import is_ours
from keras_accum.host import check_members, warn

check_members(keras, keras.models.Model, ["_make_train_function", "losses", "get_losses_for"])

_REMEDY = (
    "Construct the optimizer with reduction='mean', and multiply the loss that is a sum by the "
    "window's length, as in `compile(..., loss_weights=[{}])`; this needs whole windows."
)
_REFUSED = (
    "reduction='sum' would count penalties on weights, such as `kernel_regularizer`, once per "
    "micro-batch, not once per update. {}"
)
_ADDS = (
    "reduction='sum' counts losses that layers add once per micro-batch, not once per update, "
    "which is right only for sums over samples, such as those of `activity_regularizer` on this "
    "Keras. If not all are so: {}"
)


def _list_penalties(layer, trains=True):
    """Return (loss, whether its layer trains) for each loss that depends on weights alone."""
    trains = trains and layer.trainable
    losses = [(loss, trains) for loss in layer.get_losses_for(None)]
    for inner in getattr(layer, "layers", ()):
        losses += _list_penalties(inner, trains)
    return losses


def _check_terms(model, options):
    """Raise a ValueError if reduction="sum" would count penalties in each micro-batch."""
    is_new = getattr(model, "train_function", None) is None
    if is_new and options.accumulates and options.reduction == "sum":
        length = options.accum_iters
        remedy = _REMEDY.format(float(length) if isinstance(length, int) else "n")
        penalties = _list_penalties(model)
        if any(trains for _, trains in penalties):
            raise ValueError(_REFUSED.format(remedy))
        if set(model.losses) - {loss for loss, _ in penalties}:
            warn(_ADDS.format(remedy))


def _look_at_model(make_train_function):
    """Replace the method that calls `get_updates`, which has no model."""

    def look_and_make(model):
        optimizer = getattr(model, "optimizer", None)
        if is_ours(optimizer):
            note(optimizer, model)
            _check_terms(model, optimizer._accumulation.options)
        make_train_function(model)

    return look_and_make


PATCHES = [(keras.models.Model, "_make_train_function", _look_at_model)]
