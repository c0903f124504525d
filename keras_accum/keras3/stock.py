"""Conversion from and to the stock optimizers of Keras 3."""

import keras
import numpy as np

from keras_accum import arguments, ranges, states
from keras_accum.keras3.backend import to_numpy
from keras_accum.keras3.variables import constructor_arguments, of_stock

_NOT_OF_STOCK = {*ranges.OURS, "decay"}


def class_of(public):
    """Return the class of `public(...)`; on PyTorch, it can differ from the public class."""
    return type(public.__new__(public))


class FromAndToStock:
    """A base class that comes before a stock optimizer class."""

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """Return an optimizer of this class with the arguments and the state of another optimizer.

        Args:
            optimizer: A stock optimizer with the same rule, also with Keras's own
                `gradient_accumulation_steps`, or an optimizer of this package with the same rule.
                The optimizer isn't changed.
            **arguments: Constructor arguments that replace the optimizer's, for example
                `accum_iters`.

        Returns:
            The new optimizer.

        Raises:
            TypeError: If the optimizer has a different rule or is a LossScaleOptimizer.
            ValueError: If an argument that this class fixes has a different value, or if the
                optimizer has an open window and the new `accum_iters` is 1.

        Example:

        >>> import keras
        >>> from keras_accum.keras3 import AdamAccumulate
        >>> adam = keras.optimizers.Adam(0.01)
        >>> optimizer = AdamAccumulate.from_optimizer(adam, accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        kinds = [cls._stock_class]
        if cls._stock_class is class_of(keras.optimizers.Adam):
            kinds.append(class_of(keras.optimizers.AdamW))  # Adam with another weight_decay default
        cls._check_source(optimizer, kinds)
        config = constructor_arguments(optimizer)
        cls._check_fixed(config)
        is_ours = isinstance(optimizer, FromAndToStock)
        if not is_ours:
            del config["name"]
            of_stock_class = {n: arguments[n] for n in arguments if n not in _NOT_OF_STOCK}
            if of_stock_class:
                # A new value may change which slots there are: only names tell which stay.
                own = {n: arguments[n] for n in arguments if n in _NOT_OF_STOCK}
                return cls.from_optimizer(cls.from_optimizer(optimizer, **own), **of_stock_class)
            steps = config["gradient_accumulation_steps"]
            if steps:
                config["accum_iters"] = config.pop("gradient_accumulation_steps")
        new = cls._like(config, arguments)
        _copy_exclusions(optimizer, new)
        if optimizer._trainable_variables:
            new.build(optimizer._trainable_variables)
        state = optimizer.get_state() if is_ours else new._state_of_stock(optimizer, steps)
        if any(map(states.is_unnamed, state)):
            # A list tells its origin also by having a learning rate or not.
            if optimizer._rate_state().keys() != new._rate_state().keys():
                optimizer._check_is_built("from_optimizer")
        new._continue_from(state, optimizer)
        return new

    def _state_of_stock(self, optimizer, steps):
        """Return the state of a stock optimizer that keeps the same variables in the same order."""
        sums = list(getattr(optimizer, "_accumulated_gradients", ()))
        others = [v for v in of_stock(optimizer) if all(v is not other for other in sums)]
        state = dict(zip(self._list_names(), map(to_numpy, others)))
        state.update({f"accumulator.{i}": to_numpy(v) for i, v in enumerate(sums)})
        if steps:  # Keras counts micro-batches
            updates, position = divmod(int(state["completed_updates"]), steps)
            counters = dict(zip(states.WINDOW, (position, steps, steps)), completed_updates=updates)
            state.update({name: np.asarray(value) for name, value in counters.items()})
        return state

    def to_stock(self):
        """Return the stock optimizer with the same arguments and state, to use without keras_accum.

        `decay` becomes an InverseTimeDecay schedule, which gives the same rate. The stock optimizer
        is built for the same variables: compile the model with it. This optimizer isn't changed.

        Returns:
            The stock optimizer.

        Raises:
            ValueError: If a window is open, if the optimizer has both `decay` and a schedule, or if
                the class has arguments that the stock optimizer doesn't have.
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
                    f"`to_stock` with decay={self.decay} and a schedule: no stock schedule "
                    "combines both."
                )
            config["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(
                config["learning_rate"], decay_steps=1, decay_rate=self.decay
            )
        stock = self._stock_class.from_config(config)
        _copy_exclusions(self, stock)
        if self._is_built:
            stock.build(self._trainable_variables)
            names = self._list_names()
            if self.decay:
                names.remove("learning_rate")
            state = self._read_state()
            for name, variable in zip(names, of_stock(stock)):
                variable.assign(state[name])
        return stock


def _copy_exclusions(source, target):
    """Copy the exclusions from weight decay, which no config has."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
