"""The callbacks, one file each. No host is imported here."""


def of_host(keras, host, import_keras):
    """Return a function that makes the host's class of a callback, before Keras's own class.

    The docstrings of the callbacks have fields for the host's name and for the line that imports
    its Keras.
    """

    def make(shared, *before, **members):
        doc = shared.__doc__.format(host=host, import_keras=import_keras)
        members.update(__module__=f"keras_accum.{host}", __doc__=doc)
        return type(shared.__name__, (*before, shared, keras.callbacks.Callback), members)

    return make
