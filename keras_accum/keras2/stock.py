"""The stock optimizers of Keras 2: their arguments, from one, back to one."""

import inspect

import keras
import numpy as np

from keras_accum import arguments, base, states

K = keras.backend


class FromAndToStock:
    """Comes before a stock optimizer class."""

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, or one of this package. It is left as
                it is. Compile the model with the result.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.

        Example:

        >>> from keras_accum.keras2 import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        cls._check_source(optimizer, {cls._stock_class})
        config = optimizer.get_config()
        if "lr" in config:  # Keras 2.2
            config["learning_rate"] = config.pop("lr")
        cls._check_fixed(config)
        new = cls._like(config, arguments)
        if isinstance(optimizer, base.Optimizer):
            state = optimizer.get_state()
        elif optimizer.weights:
            state = new._state_of_stock(optimizer)
        else:
            return new
        new._continue_from(state, optimizer)
        return new

    def to_stock(self):
        """The stock optimizer with the same arguments and state, for those without this package.

        Compile the model with it, to train on or to save it. This optimizer is left as it is.

        Raises:
            ValueError: if a window is open, and if the rule is none of a stock optimizer.
        """
        self._check_can_be_stock()
        if self._added_decay:
            raise ValueError(
                f"`to_stock` with decay={self._added_decay}: {self._stock_class.__name__} of this "
                "Keras has no decay."
            )
        config = {**self.get_config(), **self.fixed}
        for name in arguments.own_config(self):
            del config[name]
        if self._added_decay is not None:
            del config["decay"]
        if "global_clipnorm" in config:
            config["clipnorm"] = config.pop("global_clipnorm")
        optimizer, state = self._stock_class(**config), self.get_state()
        K.set_value(optimizer.iterations, state["completed_updates"])
        if states.count(state):
            layout, arrays = self._layout_of(states.count(state)), states.by_index(state)
            for name, attribute in layout.attributes.items():
                K.set_value(getattr(optimizer, attribute), state[name])
            _start_from(optimizer, [_stock_array(name, state, arrays) for name in layout.files])
        return optimizer

    def _state_of_stock(self, optimizer):
        """The state of a stock optimizer that has its variables."""
        one, two = (len(self._layout_of(variables).files) for variables in (1, 2))
        layout = self._layout_of((len(optimizer.weights) - one) // (two - one) + 1)
        variables = dict(zip(layout.files, optimizer.weights))
        for name, attribute in layout.attributes.items():
            variables[name] = getattr(optimizer, attribute)
        variables["completed_updates"] = optimizer.iterations
        names = set(self._list_names(states.count(layout.names), stock=True)) & set(variables)
        return dict(zip(names, K.batch_get_value([variables[name] for name in names])))


def _stock_array(name, state, arrays):
    """What a stock optimizer has for a name in its files. None is a place that isn't used."""
    if name is None:
        return np.zeros(1, K.floatx())
    return np.asarray(state.get(name, np.zeros_like(arrays[states.index_of(name) or 0])))


def _start_from(optimizer, arrays):
    """Have a stock optimizer save these arrays, and go on from them when it gets its variables."""
    get_updates = optimizer.get_updates

    def get_updates_and_restore(*args, **kwargs):
        del optimizer.get_updates
        updates = get_updates(*args, **kwargs)
        optimizer.set_weights(arrays)
        return updates

    optimizer.weights = [K.variable(array, array.dtype) for array in arrays]
    optimizer.get_updates = get_updates_and_restore


# What Keras 2.3 takes and doesn't have in its signatures, by the class whose constructor does.
_UNSIGNED = {
    "Optimizer": ("clipnorm", "clipvalue", "global_clipnorm"),
    "SGD": ("decay",),
    **dict.fromkeys(("RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax"), ("epsilon", "decay")),
    "Nadam": ("epsilon", "schedule_decay"),
}


def keywords_of(stock_class):
    """What a class takes by keyword, also without having it in its signature."""
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


def rate_name_of(stock_class):
    """What the constructor calls the learning rate, if it isn't silent about it."""
    names = inspect.signature(stock_class.__init__).parameters
    return "learning_rate" if "learning_rate" in names else "lr"


def check_variables(optimizer):
    """Raise a TypeError unless the stock class has made what all of Keras's own have."""
    for name, held in (("learning_rate", "_rate"), ("iterations", "iterations")):
        if not hasattr(vars(optimizer).get(held), "initializer"):
            raise TypeError(
                f"{optimizer._stock_class.__name__} can't accumulate: it has no variable "
                f"`{name}`, which Keras's own optimizers have."
            )
