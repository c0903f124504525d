"""The stock optimizers of Keras 3: their arguments, and conversion from and to them."""

import keras
import numpy as np

from keras_accum import arguments, convert, port, states
from keras_accum.keras3.kept import Kept
from keras_accum.ranges import is_of_keras


def class_of(public):
    """Return the class of `public(...)`; on PyTorch, it can differ from the public class."""
    return type(public.__new__(public))


class StockPort(port.Port):
    """What arguments and conversion need to know of Keras 3."""

    host, title = "keras3", "Keras 3"
    unknown_argument = ValueError

    @staticmethod
    def prepare(cls, own, given):
        own["decay"] = float(given.pop("decay", 0.0))
        arguments.name_after(cls, None, given)
        arguments.check_one_accumulation(own, given.get("gradient_accumulation_steps"))

    @staticmethod
    def config_of(optimizer, config):
        return {**config, "decay": optimizer.decay}

    @property
    def stock(self):
        """The stock class, whose methods know nothing of accumulation."""
        return self.optimizer._stock_class

    @classmethod
    def stock_classes(cls, family, optimizer):
        if family._stock_class is class_of(keras.optimizers.Adam):
            # AdamW is Adam with another default of weight_decay.
            return {family._stock_class, class_of(keras.optimizers.AdamW)}
        return {family._stock_class}

    @staticmethod
    def arguments_of(optimizer):
        config = arguments.config_of(optimizer)
        if not isinstance(optimizer._learning_rate, keras.Variable):
            config["learning_rate"] = optimizer._learning_rate  # a callable, not serialized
        if not convert.accumulates(optimizer):
            steps = config.pop("gradient_accumulation_steps")
            if steps:
                config["accum_iters"] = steps
        return config

    def state_of_stock(self, optimizer):
        """Return the state of a stock optimizer that keeps the same variables in the same order."""
        if optimizer._trainable_variables:
            self.build(optimizer._trainable_variables)
        steps = optimizer.gradient_accumulation_steps
        sums = list(getattr(optimizer, "_accumulated_gradients", ()))
        others = [v for v in all_variables(optimizer) if all(v is not other for other in sums)]
        state = dict(zip(self.stock_variables(), self.read_all(others)))
        state.update({f"accumulator.{i}": self.read(v) for i, v in enumerate(sums)})
        if steps:  # Keras counts micro-batches
            updates, position = divmod(int(state["completed_updates"]), steps)
            counters = dict(zip(states.WINDOW, (position, steps, steps)), completed_updates=updates)
            state.update({name: np.asarray(value) for name, value in counters.items()})
        return state, []

    def make_stock(self, config):
        state, decay = self.accumulation.state, config.pop("decay")
        if state.waiting:
            state.check_is_built("to_stock")
        if decay:
            if "learning_rate" not in self.shared_variables():
                raise ValueError(
                    f"`to_stock` with decay={decay} and a schedule: no stock schedule combines "
                    "both."
                )
            config["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(
                config["learning_rate"], decay_steps=1, decay_rate=decay
            )
        return self.stock.from_config(config)

    def continue_stock(self, optimizer):
        if self.variables:
            optimizer.build(self.variables)
            state = self.accumulation.state.read()
            if not isinstance(optimizer._learning_rate, keras.Variable):
                state.pop("learning_rate", None)
            names = [name for name in self.stock_variables() if name in state]
            self.write_all(zip(all_variables(optimizer), map(state.get, names)))


def all_variables(optimizer, kept=None):
    """Return all variables of a built optimizer, also those that Keras doesn't track."""
    variables, cls = list(optimizer._variables), getattr(optimizer, "_stock_class", type(optimizer))
    if not is_of_keras(cls):
        kept = kept or Kept(optimizer, optimizer._trainable_variables)
        # Also those that a property of the class's own tells of.
        for variable in [*kept.variables, *cls.variables.__get__(optimizer)]:
            if all(variable is not other for other in variables):
                variables.append(variable)
    return variables
