"""The stock optimizers of Keras 2: their arguments, conversion from and to them."""

import inspect

import keras
import numpy as np

from keras_accum import arguments, base, states
from keras_accum.arguments import config_of

K = keras.backend


class FromAndToStock:
    """A base class that comes before a stock optimizer class."""

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """Return an optimizer of this class with the arguments and the state of another optimizer.

        Args:
            optimizer: A stock optimizer with the same rule, or an optimizer of this package with
                the same rule. The optimizer isn't changed.
            **arguments: Constructor arguments that replace the optimizer's, for example
                `accum_iters`.

        Returns:
            The new optimizer. Compile the model with it.

        Raises:
            TypeError: If the optimizer has a different rule.
            ValueError: If an argument that this class fixes has a different value, or if the
                optimizer has an open window and the new `accum_iters` is 1.

        Example:

        >>> from keras_accum.keras2 import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        cls._check_source(optimizer, {cls._stock_class})
        config = config_of(optimizer)
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
        """Return the stock optimizer with the same arguments and state, to use without keras_accum.

        Compile the model with the stock optimizer, to continue training or to save the model. This
        optimizer isn't changed.

        Returns:
            The stock optimizer.

        Raises:
            ValueError: If a window is open, if the class has arguments that the stock optimizer
                doesn't have, or if the optimizer has `decay` and the stock optimizer can't have it.
        """
        self._check_can_be_stock()
        decay = self._accumulation.options.decay
        if decay:
            raise ValueError(
                f"`to_stock` with decay={decay}: {self._stock_class.__name__} of this Keras has no "
                "decay."
            )
        config = {**config_of(self), **self.fixed}
        for name in {*arguments.OWN} - {"lr", "decay"}:
            del config[name]
        if not has_decay(self._stock_class):
            del config["decay"]
        if "global_clipnorm" in config:
            config["clipnorm"] = config.pop("global_clipnorm")
        optimizer, state = self._stock_class(**config), self.get_state()
        K.set_value(optimizer.iterations, state["completed_updates"])
        if states.count(state):
            layout = self._accumulation.port.layout_of(states.count(state))
            arrays = states.by_index(state)
            for name, attribute in layout.attributes.items():
                K.set_value(getattr(optimizer, attribute), state[name])
            _start_from(optimizer, [_stock_array(name, state, arrays) for name in layout.files])
        return optimizer

    def _state_of_stock(self, optimizer):
        """Return the state of a stock optimizer whose variables exist."""
        layout_of = self._accumulation.port.layout_of
        one, two = (len(layout_of(variables).files) for variables in (1, 2))
        layout = layout_of((len(optimizer.weights) - one) // (two - one) + 1)
        variables = dict(zip(layout.files, optimizer.weights))
        for name, attribute in layout.attributes.items():
            variables[name] = getattr(optimizer, attribute)
        variables["completed_updates"] = optimizer.iterations
        names = set(self._list_names(states.count(layout.names), stock=True)) & set(variables)
        return dict(zip(names, K.batch_get_value([variables[name] for name in names])))


def _stock_array(name, state, arrays):
    """Return the array for a name in a stock optimizer's files; None is an unused placeholder."""
    if name is None:
        return np.zeros(1, K.floatx())
    return np.asarray(state.get(name, np.zeros_like(arrays[states.index_of(name) or 0])))


def _start_from(optimizer, arrays):
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
