"""Terms of a loss that `reduction="sum"` would count in each micro-batch."""

from keras_accum.host import find_own_methods
from keras_accum.terms.term import are_means, find_reductions

_REFUSED = "reduction='sum' would count {} once per micro-batch, not once per update. {}"
_ADDS = (
    "reduction='sum' counts {} once per micro-batch, not once per update, which is right only for "
    "sums over samples. If not all are: {}"
)
_BY_LAYERS = "losses that layers add, such as activity penalties,"
_BESIDE_SUMS = "losses that are means"
_ON_WEIGHTS = "penalties on weights, such as `kernel_regularizer`,"
_REMEDY = (
    "{}onstruct the optimizer with reduction='mean', and multiply each loss that is a sum by the "
    "window's length, as in `compile(..., loss_weights=[{}])`{}; this needs whole windows."
)
_IN_SLICES = "On Keras 3, use `MicroBatches` with the stock optimizer and whole batches. Or c"


def refuse_repeated(model, optimizers, host):
    """Raise a ValueError if a window would add up penalties, or means beside a sum."""
    adding = [o for o in optimizers if o.reduction == "sum" and o._accumulation.options.accumulates]
    if adding and not find_own_methods(model, host.keras.Model, "train_step", "compute_loss"):
        terms = find_repeated(model, host)
        if terms:
            raise ValueError(_REFUSED.format(terms, make_remedy(model, adding[0], host)))


def find_repeated(model, host):
    """Return the terms of the loss that a window would count too often, as a text, or ""."""
    losses = [loss for loss in host.flatten(model.loss) if loss is not None]
    is_mixed = "sum" in find_reductions(losses) and any(are_means([loss]) for loss in losses)
    terms = [_BESIDE_SUMS] * is_mixed + [_ON_WEIGHTS] * host.has_penalties(model)
    return " and ".join(terms)


def make_remedy(model, optimizer, host):
    """Return the line to write instead."""
    length = optimizer._accumulation.options.accum_iters
    length = float(length) if isinstance(length, int) else "n"
    several = len(host.flatten(model.loss)) > 1
    weights = f"{length}, 1.0" if several else f"{length}"
    start = _IN_SLICES if host.name == "keras3" else "C"
    return _REMEDY.format(start, weights, " for a sum and a mean" if several else "")


def describe(model, optimizer, host, is_own, adds):
    """Return a warning about terms of the loss that may be no sums, "" if there are none.

    is_own: True if the model's own code puts the loss together.
    adds: True if layers add losses.
    """
    terms = [_BY_LAYERS if adds else "", find_repeated(model, host) if is_own else ""]
    terms = " and ".join(filter(None, terms))
    return terms and _ADDS.format(terms, make_remedy(model, optimizer, host))


def are_scaled(model, optimizer, host):
    """Return True if all losses that are sums are multiplied by the window's length."""
    container, _, _ = host.find_losses(model)
    weights = host.flatten(getattr(container, "_user_loss_weights", None))
    losses, length = host.flatten(model.loss), optimizer._accumulation.options.accum_iters
    pairs = [pair for pair in zip(losses, weights) if not are_means(pair[:1])]
    return bool(pairs) and all(weight == length for _, weight in pairs)
