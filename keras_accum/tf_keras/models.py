"""The models that are compiled with an optimizer of this package, which know the frozen layers.

On this Keras, a variable doesn't know that its layer is frozen.
"""

import functools
import weakref

from keras_accum import base
from keras_accum.tf_keras.library import keras

# Not an attribute of the optimizer, whose copies belong to no model.
_models = weakref.WeakKeyDictionary()


def are_frozen(optimizer, variables):
    """Return a list: for each of these variables, True if its layer is frozen now."""
    if not variables:
        return []
    models = list(_models.get(optimizer, ()))
    trainable = {id(v) for model in models for v in model.trainable_weights}
    others = {id(v) for model in models for v in model.non_trainable_weights}
    return [id(v) in others - trainable for v in variables]


def remember_compiled_models():
    """Make `compile` note the model of an optimizer of this package."""
    of_keras = keras.Model.compile

    @functools.wraps(of_keras)
    def compile_and_remember(model, *args, **kwargs):
        result = of_keras(model, *args, **kwargs)
        optimizer = base.inner(getattr(model, "optimizer", None))
        if isinstance(optimizer, base.Optimizer):
            _models.setdefault(optimizer, weakref.WeakSet()).add(model)
        return result

    keras.Model.compile = compile_and_remember
