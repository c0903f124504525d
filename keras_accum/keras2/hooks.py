"""The hook on Keras 2's models: a model knows the terms of its loss, an optimizer doesn't."""

import keras

from keras_accum.convert import is_ours
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
    found = [(loss, trains) for loss in layer.get_losses_for(None)]
    for inner in getattr(layer, "layers", ()):
        found += _list_penalties(inner, trains)
    return found


def _check_terms(make_train_function):
    """Return a `_make_train_function` that refuses penalties with reduction="sum"."""

    def check_and_make(model):
        optimizer = getattr(model, "optimizer", None)
        options = optimizer._accumulation.options if is_ours(optimizer) else None
        is_new = getattr(model, "train_function", None) is None
        if options is not None and is_new and options.accumulates and options.reduction == "sum":
            length = options.accum_iters
            remedy = _REMEDY.format(float(length) if isinstance(length, int) else "n")
            penalties = _list_penalties(model)
            if any(trains for _, trains in penalties):
                raise ValueError(_REFUSED.format(remedy))
            if set(model.losses) - {loss for loss, _ in penalties}:
                warn(_ADDS.format(remedy))
        make_train_function(model)

    return check_and_make


HOOKS = [(keras.models.Model, "_make_train_function", _check_terms)]
