"""Functions that run before and after the methods of one training's CallbackList."""

_OLD = "_methods_before_keras_accum"  # a CallbackList's attribute: those that `install` replaced


def install(callbacks, before, after=None):
    """Run functions before a CallbackList's methods, and after them: `{method: [functions]}`.

    Each gets the method's arguments. They stay until `remove`, also after an error in
    the training.
    """
    remove(callbacks)
    after, own = after or {}, vars(callbacks)
    methods = {
        name: _surround(getattr(callbacks, name), before.get(name, ()), after.get(name, ()))
        for name in {*before, *after}
    }
    own[_OLD] = {name: own.get(name) for name in methods}
    own.update(methods)


def remove(callbacks):
    """Give a CallbackList its own methods back."""
    own = vars(callbacks)
    for name, method in own.pop(_OLD, {}).items():
        if method is None:
            own.pop(name, None)
        else:
            own[name] = method


def _surround(method, before, after):
    def call(*arguments, **keywords):
        for function in tuple(before):  # one may remove itself
            function(*arguments, **keywords)
        result = method(*arguments, **keywords)
        for function in after:
            function(*arguments, **keywords)
        return result

    return call
