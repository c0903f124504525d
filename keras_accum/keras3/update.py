"""An update on Keras 3: the stock optimizer's own `apply`, whose writes go through a filter.

Where the switch is 0, a filter keeps the old value. `SelectWrites` filters each value before it is
written. `SelectAfter` restores old values after the update, so no write can bypass it, but it needs
a second copy. Both are scopes of one update:

switch: The update's switch. If it is unconditional, every write counts.
switch_of: {index: switch} for weights without a gradient in this micro-batch, and their slots.
following_the_update(): A scope that ignores the missing gradients.
"""

import contextlib

import keras
from keras import ops

from keras_accum.engine import parts
from keras_accum.engine.window import is_unconditional


class Keras3Update(parts.Update):
    """An update on Keras 3. Each backend has a subclass."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._filters = {}  # by replica, during its update

    @property
    def filter(self):
        """The current update's filter, or None. Across replicas, any replica's."""
        filters = self._filters
        return filters.get(self.replicas.index()) or next(iter(filters.values()), None)

    @property
    def is_updating(self):
        return bool(self._filters)

    def make_filter(self, switch, switch_of):
        """Return the filter for an update."""
        return SelectAfter(self, switch, switch_of)

    def run(self, step, average, variables, switches):
        switch_of = {
            self.store.index(variable): switch
            for variable, switch in zip(variables, switches)
            if switch is not step.switch
        }
        if switch_of:
            self.check_norm(keras.optimizers.Optimizer, ["apply", "_clip_gradients"])
        replica, selection = self.replicas.index(), self.make_filter(step.switch, switch_of)
        self._filters[replica] = selection
        try:
            with selection:
                self.store.stock_class.apply(self.optimizer, average(), variables)
        finally:
            del self._filters[replica]

    def list_written(self, by_weight):
        """Return (owner, variable) for each write of an update, without owners if not asked."""
        store = self.store
        owners = store.owners() if by_weight else {}
        variables = [*store.variables, *store.list_stock()]
        return [(owners.get(store.key(variable)), variable) for variable in variables]

    def count_updates(self, switch):
        """Do nothing: the stock optimizer counts its updates."""


class SelectWrites(keras.StatelessScope):
    """Filter each assignment through the switch of the variable's owner."""

    def __init__(self, update, switch, switch_of):
        super().__init__()
        self._values, self._store = update.values, update.store
        self.switch, self.switch_of = switch, switch_of
        self._owners = self._store.owners() if switch_of else {}

    def get_switch(self, variable):
        """Return the switch of the variable's owner."""
        return self.switch_of.get(self._owners.get(self._store.key(variable)), self.switch)

    @contextlib.contextmanager
    def following_the_update(self):
        switch_of, self.switch_of = self.switch_of, {}
        yield
        self.switch_of = switch_of

    def select(self, value, variable):
        """Return the value to write to a variable."""
        switch = self.get_switch(variable)
        if is_unconditional(switch):
            return value
        old = self._values.value(variable)
        return ops.where(switch > 0, ops.cast(value, old.dtype), old)

    # Keras calls these on a scope. `original_scope` is the scope of `stateless_apply`, if any.

    def get_current_value(self, variable):
        outer = self.original_scope
        return None if outer is None else outer.get_current_value(variable)

    def add_update(self, update):
        variable, value = update
        value = self.select(value, variable)
        if self.original_scope is None:
            variable._direct_assign(value)
        else:
            self.original_scope.add_update((variable, value))


class SelectAfter:
    """Restore old values where the switch is 0, at the end of the scope.

    written: (owner, variable) pairs; None for all the optimizer's and the model's variables.
    """

    def __init__(self, update, switch, switch_of, written=None):
        self._update, self.switch, self.switch_of = update, switch, switch_of
        if is_unconditional(switch) and not switch_of:
            self._written = []
        else:
            self._written = update.list_written(bool(switch_of)) if written is None else written

    def __enter__(self):
        value, find = self._update.values.value, self.switch_of.get
        pairs = [(variable, find(owner, self.switch)) for owner, variable in self._written]
        self._held = [
            (variable, switch, ops.copy(value(variable)))
            for variable, switch in pairs
            if not is_unconditional(switch)
        ]

    def __exit__(self, *error):
        self._update.take_back(self._held)

    @contextlib.contextmanager
    def following_the_update(self):
        switch_of = self.switch_of
        self._restart({})  # moving averages must see the weights that count
        yield
        self._restart(switch_of)

    def _restart(self, switch_of):
        if self.switch_of != switch_of:
            self.__exit__()
            self.switch_of = switch_of
            self.__enter__()
