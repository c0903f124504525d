"""The stock optimizers of Keras 2: their arguments, and what they start from."""

import inspect

import keras

K = keras.backend


def start_from(optimizer, arrays):
    """Make a stock optimizer save these arrays, and continue from them when it has variables."""
    get_updates = optimizer.get_updates

    def get_updates_and_restore(*args, **kwargs):
        del optimizer.get_updates
        updates = get_updates(*args, **kwargs)
        optimizer.set_weights(arrays)
        return updates

    optimizer.weights = [K.variable(array, array.dtype) for array in arrays]
    optimizer.get_updates = get_updates_and_restore


# Arguments that Keras 2.3 takes as **kwargs, by the class whose constructor takes them.
_UNSIGNED = {
    "Optimizer": ("clipnorm", "clipvalue", "global_clipnorm"),
    "SGD": ("decay",),
    **dict.fromkeys(("RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax"), ("epsilon", "decay")),
    "Nadam": ("epsilon", "schedule_decay"),
}


def keywords_of(stock_class):
    """Return the keywords of a class, also those that aren't in its signature."""
    names = []
    for cls in stock_class.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(cls.__init__).parameters.values()
        names += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if cls.__module__ == keras.optimizers.__name__:
            names += _UNSIGNED.get(cls.__name__, ())
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return [name for name in names if name != "self"]


def has_decay(stock_class):
    return "decay" in keywords_of(stock_class)


def rate_name_of(stock_class):
    """Return the constructor's name for the learning rate, "lr" if its signature has neither."""
    names = inspect.signature(stock_class.__init__).parameters
    return "learning_rate" if "learning_rate" in names else "lr"


def check_variables(optimizer):
    """Raise a TypeError unless the stock class has created the variables of Keras's optimizers."""
    iterations, rate = vars(optimizer).get("iterations"), optimizer.learning_rate
    for name, variable in (("learning_rate", rate), ("iterations", iterations)):
        if not hasattr(variable, "initializer"):
            raise TypeError(
                f"{optimizer._stock_class.__name__} can't accumulate: it has no variable "
                f"`{name}`, which Keras's own optimizers have."
            )


def clips(given):
    """Take the stock arguments for clipping out of `given`, checked."""
    names = "clipnorm", "clipvalue", "global_clipnorm"
    found = {n: given.pop(n) for n in names if n in given}
    found = {n: float(value) for n, value in found.items() if value is not None}
    if "global_clipnorm" in found:
        if "clipnorm" in found:
            raise ValueError(
                "`clipnorm` and `global_clipnorm` are the same on this Keras, the norm of all "
                f"gradients together: give one of them. Received: {found}"
            )
        found["clipnorm"] = found.pop("global_clipnorm")
    return found
