"""The callbacks, one file each. No host is imported here."""

from keras_accum import ranges


def of_host(keras, host, import_keras):
    """Return a function that makes the host's class of a callback, before Keras's own class.

    The docstrings of the callbacks have fields for the host's name and for the line that imports
    its Keras.
    """

    def make(shared, *before, **members):
        doc = shared.__doc__.format(host=host, import_keras=import_keras)
        members.update(__module__=f"keras_accum.{host}", __doc__=doc)
        made = type(shared.__name__, (*before, shared, keras.callbacks.Callback), members)
        made.set_model = _setter(made, keras)
        return made

    return make


def _setter(cls, keras):
    """Return a callback's `set_model`, which Keras calls first, with two checks."""

    def set_model(self, model=None):
        name = cls.__name__
        if not isinstance(self, cls):  # called on the class, so `self` is the model
            raise TypeError(
                f"`callbacks` must have callbacks, not their classes: give {name}(). "
                f"Received: {name}"
            )
        kinds = [kind for kind in type(model).__mro__ if kind.__name__ == "Model"]
        if kinds and ranges.is_of_keras(kinds[0]) and not isinstance(model, keras.models.Model):
            other = kinds[0].__module__.partition(".")[0]
            module = "tf_keras" if other == "tf_keras" else "keras3"
            raise TypeError(
                f"{name} of {cls.__module__} is for models of {keras.__name__}, and this model is "
                f"of {other}: from keras_accum.{module} import {name}"
            )
        super(cls, self).set_model(model)

    return set_model
