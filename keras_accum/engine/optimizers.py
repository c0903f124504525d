"""The accumulating optimizers of a model, and those inside of other optimizers. No Keras here."""

from keras_accum.engine.accumulation import Accumulation
from keras_accum.host import find_user_classes, list_items


def inner(optimizer):
    """Return a LossScaleOptimizer's inner optimizer, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_ours(optimizer):
    """True for an optimizer from this package."""
    return isinstance(getattr(optimizer, "_accumulation", None), Accumulation)


def accumulating_in(optimizer):
    """Return the accumulating optimizers that a model's optimizer is, wraps or contains."""
    optimizer = inner(optimizer)
    if is_ours(optimizer):
        return [optimizer]
    # Keras 3.15's MultiOptimizer has a list; on tf_keras, a model may have any structure.
    structure = getattr(optimizer, "optimizers", optimizer)
    if isinstance(structure, (dict, list, tuple)):
        return [ours for item in list_items(structure) for ours in accumulating_in(item)]
    # A user's class may wrap optimizers in its attributes.
    is_wrapper = find_user_classes(type(optimizer)) and hasattr(optimizer, "__dict__")
    values = vars(optimizer).values() if is_wrapper else ()
    wrapped = [ours for value in values for ours in _list_ours(value)]
    return list({id(ours): ours for ours in wrapped}.values())


def _list_ours(value):
    """Return the accumulating optimizers in an attribute, which may be a list or a dictionary."""
    return [optimizer for optimizer in map(inner, list_items(value)) if is_ours(optimizer)]


def find_accumulating(model):
    """Return a model's accumulating optimizers, {attribute: [optimizer, ...]}.

    Besides `model.optimizer`, a model with its own train step may keep them as attributes, also in
    lists and dictionaries.
    """
    by_attribute = {"optimizer": accumulating_in(getattr(model, "optimizer", None))}
    known = set(map(id, by_attribute["optimizer"]))
    for name, value in list(vars(model).items()):
        if name.startswith("_"):  # TensorFlow's tracking has each attribute again
            continue
        new = [optimizer for optimizer in _list_ours(value) if id(optimizer) not in known]
        known.update(map(id, new))
        by_attribute[name] = by_attribute.get(name, []) + new
    return {name: optimizers for name, optimizers in by_attribute.items() if optimizers}


def list_accumulating(model):
    """Return a list of a model's accumulating optimizers."""
    return sum(find_accumulating(model).values(), [])


def forgetting(apply):
    """Wrap a LossScaleOptimizer's `apply` to forget pending arguments at the end of each step.

    A step that it skips doesn't call our optimizer, which would keep them for the next one.
    """

    def apply_and_forget(optimizer, *arguments, **keywords):
        try:
            return apply(optimizer, *arguments, **keywords)
        finally:
            for ours in accumulating_in(optimizer):
                ours._accumulation.pending.forget()

    return apply_and_forget
