"""One optimizer's variables by their names in a state. No Keras is imported here."""

import numpy as np

from keras_accum.engine.models import name_weights
from keras_accum.engine.state import names
from keras_accum.engine.state.names import NAMES
from keras_accum.engine.state.parsing import portable
from keras_accum.engine.window import FORMAT, MISSING, UNWEIGHED, WEIGHT


class NamedVariables:
    """One optimizer's variables by their names in a state: reads and writes their values."""

    def __init__(self, accumulation):
        self._accumulation, self.store = accumulation, accumulation.store

    @property
    def is_built(self):
        """True if the optimizer has its variables."""
        return bool(self.store.variables)

    @property
    def has_window(self):
        """True if there are accumulators and counters of a window."""
        return self._accumulation.window is not None

    @property
    def owner(self):
        """The optimizer's description, for messages."""
        name, options = type(self.store.optimizer).__name__, self._accumulation.options
        rule = self.store.rule_name
        return f"this {name}(accum_iters={options.accum_iters}), whose rule is {rule}"

    def by_name(self):
        """Return the variables by name, in the order of files."""
        self._accumulation.check_build()
        of_window = self._accumulation.window.named if self.has_window else {}
        return {**self.store.by_name(), **of_window}

    def shapes(self):
        """Return the variables' shapes by name."""
        return {name: tuple(map(int, v.shape)) for name, v in self.by_name().items()}

    def read_counter(self, name):
        """Return a counter's value as an int, 0 if it doesn't exist."""
        if name == "completed_updates":
            return int(self.store.read(self.store.updates))
        window = self._accumulation.window
        return 0 if window is None else int(self.store.read(window.named[name]))

    @property
    def is_fresh(self):
        """True if the optimizer has made no step."""
        return not any(map(self.read_counter, ("completed_updates", "window_position")))

    def read(self):
        """Return the state as `{name: array}`."""
        state = {name: portable(self.store.read(v)) for name, v in self.by_name().items()}
        if WEIGHT in state and not self._accumulation.may_lack_weights:
            state["state_format"] = np.asarray(FORMAT)
        state.setdefault("state_format", np.asarray(UNWEIGHED))
        rate = self.store.rate()
        if rate is not None:
            state.setdefault("learning_rate", np.asarray(rate))
        if MISSING in state and not state[MISSING].any():
            del state[MISSING]
        if self.is_built:
            state[NAMES] = names.encode(name_weights(self.store).trained)
        return state

    def write(self, state, with_rate=True):
        """Write the values that a state has."""
        named = self.by_name()
        if with_rate:
            self.write_rate(state.get("learning_rate"))
        for name, value in state.items():
            if name in named and name != "learning_rate":
                self.store.write(named[name], value)

    def write_rate(self, rate):
        """Set the learning rate, if both this and the optimizer's are numbers."""
        if rate is not None and self.store.rate() is not None:
            self.store.write_rate(rate)
