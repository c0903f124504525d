"""An optimizer's models, and their weights' names. No Keras is imported here."""

import re
import weakref
from typing import List, NamedTuple

# Not an attribute: a copied optimizer belongs to no model.
_models = weakref.WeakKeyDictionary()


def note(optimizer, model):
    """Note that a model trains with this optimizer."""
    _models.setdefault(optimizer, weakref.WeakKeyDictionary())[model] = None


def list_models(optimizer):
    """Return the models of this optimizer, the first one first."""
    return list(_models.get(optimizer, ()))


class Weights(NamedTuple):
    """The names of an optimizer's weights, and of all others in its models."""

    trained: List[str]
    others: List[str]


def name_weights(store):
    """Return the names of a store's weights in its order, and of the others in its models.

    A name begins with the layers around the weight: those that its name from Keras lacks, such as
    a functional model, are added.
    """
    own, layers, others = set(map(id, store.variables)), {}, {}
    for model in list_models(store.optimizer):
        weights = list(_walk(model, store.list_layers, set()))
        if own <= {id(weight) for weight, _ in weights}:
            for weight, around in weights:
                layers.setdefault(id(weight), around)
            others.update((id(weight), weight) for weight, _ in weights if id(weight) not in own)

    def name(weight):
        keras_name = re.sub(":[0-9]+$", "", store.get_name(weight))
        return _complete(keras_name, layers.get(id(weight), ()))

    return Weights(list(map(name, store.variables)), list(map(name, others.values())))


def _walk(layer, list_layers, seen, around=()):
    """Yield (weight, names of the layers around it), first with the innermost layers."""
    seen.add(id(layer))
    for inner in list_layers(layer):
        if id(inner) not in seen:
            yield from _walk(inner, list_layers, seen, (*around, inner.name))
    for weight in layer.weights if layer.built else ():
        yield weight, around


def _complete(name, layers):
    """Return a weight's name with those of the layers around it that it lacks."""
    # Keras 2 numbers the names of a session's second model.
    missing = [n for n in layers if not re.search(f"(^|/){re.escape(n)}(_[0-9]+)*/", name)]
    return "/".join([*missing, name])
