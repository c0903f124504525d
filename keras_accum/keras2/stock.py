"""Conversion from Keras 2's stock optimizers. There is none to them."""

from keras_accum.engine.state import lists
from keras_accum.engine.stock import Stock


class Keras2Stock(Stock):
    """Keras 2's stock optimizers, which get their variables from a train step."""

    def arguments(self, optimizer):
        return optimizer.get_config()

    def function_arguments(self, optimizer):
        return {}  # the learning rate is a variable

    def variables(self, optimizer):
        return []  # a stock optimizer doesn't know them

    def state(self, optimizer, store):
        slots = lists.KERAS_2_SLOTS[store.rule_name]
        variables = [v for v in optimizer.weights if v is not optimizer.iterations]
        places = range(len(variables) // len(slots))
        names = [store.slot_name(slot, i) for slot in slots for i in places]
        # Skip the stock optimizer's unused slots.
        used = tuple(store.slot_name(slot, "") for slot in store.make_rule().slots)
        named = {name: v for name, v in zip(names, variables) if name.startswith(used)}
        named = store.keep_used(named)
        named["completed_updates"] = optimizer.iterations
        return {name: store.read(variable) for name, variable in named.items()}

    def make(self, config, store):
        raise NotImplementedError(
            "`to_stock` isn't available on Keras 2.2 and 2.3, where only a train step creates a "
            "stock optimizer's variables. Save the model, and load it with tf_keras."
        )

    def build(self, optimizer, variables):
        """Do nothing: only a train step creates variables."""

    def write(self, optimizer, store):
        """Do nothing: `make` raises first."""
