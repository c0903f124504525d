"""Conversion to and from Keras 3's stock optimizers."""

from typing import TypeVar

import keras

from keras_accum.engine.stock import Stock
from keras_accum.engine.window import COUNTERS, UNWEIGHED

Class = TypeVar("Class", bound=type)


def implementation(public: Class) -> Class:
    """Return the class of `public(...)`; on PyTorch, it can differ from the public class."""
    return type(public.__new__(public))


class Keras3Stock(Stock):
    """Keras 3's stock optimizers, on any backend."""

    def classes(self, stock_class):
        adam, adamw = map(implementation, (keras.optimizers.Adam, keras.optimizers.AdamW))
        return {adam, adamw} if stock_class is adam else {stock_class}  # another weight_decay

    def arguments(self, optimizer):
        config = {**optimizer.get_config(), **self.function_arguments(optimizer)}
        steps = config.pop("gradient_accumulation_steps")
        return {**config, "accum_iters": steps} if steps else config

    def function_arguments(self, optimizer):
        rate = optimizer._learning_rate
        return {} if isinstance(rate, keras.Variable) else {"learning_rate": rate}

    def variables(self, optimizer):
        return optimizer._trainable_variables

    def state(self, optimizer, store):
        steps = optimizer.gradient_accumulation_steps
        sums = optimizer._accumulated_gradients if steps and optimizer.built else ()
        variables = [v for v in optimizer._variables if all(v is not total for total in sums)]
        state = {name: store.read(v) for name, v in zip(store.by_name(), variables)}
        if steps:  # Keras counts micro-batches
            updates, position = divmod(int(state["completed_updates"]), steps)
            counters = dict(zip(COUNTERS, (position, steps, 0)), state_format=UNWEIGHED)
            state.update(completed_updates=updates, **counters)
            state.update({f"accumulator.{i}": store.read(v) for i, v in enumerate(sums)})
        return state

    def make(self, config, store):
        decay, schedules = config.pop("decay"), keras.optimizers.schedules
        if decay and store.rate() is None:
            raise ValueError(
                f"`to_stock` with decay={decay} and a schedule: no stock schedule has both."
            )
        if decay:
            rate = config["learning_rate"]
            config["learning_rate"] = schedules.InverseTimeDecay(rate, 1, decay)
        return super().make(config, store)

    def write(self, optimizer, store):
        sources = store.by_name()
        if not isinstance(optimizer._learning_rate, keras.Variable):
            sources.pop("learning_rate", None)  # a schedule in the place of `decay`
        for target, source in zip(optimizer._variables, sources.values()):
            target.assign(store.read(source))
