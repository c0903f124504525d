"""The stock optimizers of Keras 3: from one, back to one."""

import inspect
import warnings

import keras
import numpy as np
from keras import ops

from keras_accum import arguments, states
from keras_accum.keras3.variables import constructor_arguments


def class_of(public):
    """The class that `public(...)` makes; on PyTorch some public names stand for another class."""
    return type(public.__new__(public))


def is_of_keras(stock_class):
    """Whether a class is one of Keras's own, of which it's known how it writes."""
    return stock_class.__module__.startswith("keras.")


class FromAndToStock:
    """Comes before a stock optimizer class."""

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, one with Keras's own
                `gradient_accumulation_steps`, or one of this package. It is left as it is.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.

        Example:

        >>> import keras
        >>> from keras_accum.keras3 import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(keras.optimizers.Adam(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        kinds = [cls._stock_class]
        if cls._stock_class is class_of(keras.optimizers.Adam):
            kinds.append(class_of(keras.optimizers.AdamW))  # with another default of weight_decay
        cls._check_source(optimizer, kinds)
        config = constructor_arguments(optimizer)
        cls._check_fixed(config)
        is_ours = isinstance(optimizer, FromAndToStock)
        if not is_ours:
            del config["name"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Keras's own accumulation
            state = optimizer.get_state() if is_ours else cls._state_of_stock(optimizer, config)
        if not is_ours and config["gradient_accumulation_steps"]:
            config["accum_iters"] = config.pop("gradient_accumulation_steps")
        new = cls._like(config, arguments)
        _copy_exclusions(optimizer, new)
        if optimizer._trainable_variables:
            new.build(optimizer._trainable_variables)
        new._continue_from(state, optimizer)
        return new

    @classmethod
    def _state_of_stock(cls, optimizer, config):
        likeness = cls._like(config)._scratch(optimizer._trainable_variables, stock=True)
        names = likeness._state_variables()
        state = dict(zip(names, map(ops.convert_to_numpy, optimizer.variables)))
        steps = config["gradient_accumulation_steps"]
        if steps:  # Keras counts micro-batches
            updates, position = divmod(int(state["completed_updates"]), steps)
            counters = dict(zip(states.WINDOW, (position, steps, steps)), completed_updates=updates)
            state.update({name: np.asarray(value) for name, value in counters.items()})
        return state

    def to_stock(self):
        """The stock optimizer with the same arguments and state, for those without this package.

        `decay` becomes an InverseTimeDecay schedule, which is the same rate. Built for the same
        variables: compile the model with it. This optimizer is left as it is.

        Raises:
            ValueError: if a window is open, if there is `decay` and a schedule, and if the class
                has arguments that the stock optimizer hasn't.
        """
        self._check_can_be_stock()
        if self._pending:
            self._check_is_built("to_stock")
        config = {**constructor_arguments(self), **self.fixed}
        for name in ("name", *arguments.OWN):
            config.pop(name, None)
        if self.decay:
            if not isinstance(self._learning_rate, keras.Variable):
                raise ValueError(
                    f"`to_stock` with decay={self.decay} and a schedule: no stock schedule is both."
                )
            config["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(
                config["learning_rate"], decay_steps=1, decay_rate=self.decay
            )
        stock = self._stock_class(**config)
        _copy_exclusions(self, stock)
        if self._is_built:
            stock.build(self._trainable_variables)
            names = self._list_names(len(self._trainable_variables), stock=True)
            if self.decay:
                names.remove("learning_rate")
            state = self._read_state()
            for name, variable in zip(names, stock.variables):
                variable.assign(state[name])
        return stock


def _copy_exclusions(source, target):
    """What `exclude_from_weight_decay` was told, which is in no config."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def keywords_of(stock):
    """The keywords, with defaults, that a class hands on to Keras's optimizer as **kwargs."""
    own = inspect.signature(stock.__init__).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own.values()):
        return {}
    # On TensorFlow the public class hands on all that it's given.
    signatures = [inspect.signature(cls.__init__) for cls in keras.optimizers.Optimizer.__mro__]
    of_keras = next(s.parameters for s in signatures if "clipnorm" in s.parameters)
    return {
        name: parameter.default
        for name, parameter in of_keras.items()
        if parameter.default is not inspect.Parameter.empty and name not in own
    }
