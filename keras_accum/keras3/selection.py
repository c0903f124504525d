"""Select which writes of the stock optimizer's update take effect.

`with selection:` surrounds the stock optimizer's `apply`. A write in this scope takes effect if the
update's switch is 1. `own` has a switch of its own for each variable whose gradient is missing in
the micro-batch, by the variable's index. If the update is certain, for example inside a
conditional, every write takes effect except writes to the variables of `own`.
"""

import contextlib

import keras
from keras import ops

from keras_accum import states
from keras_accum.gates import is_certain


class Selection:
    """Base class: registers a selection with the port during an update."""

    def __init__(self, port, switch, own):
        self.port = port
        self.of_update = switch
        self.own = own

    def __enter__(self):
        self.port.selections[self.port.replica()] = self

    def __exit__(self, *error):
        del self.port.selections[self.port.replica()]

    def after_update_steps(self):
        """Called after weights and slots are written, before moving averages and constraints."""

    def before_constraints(self):
        """Called after all writes except the constraints'."""

    def by_update(self):
        """A scope in which the update's switch applies to all variables."""
        return contextlib.nullcontext()


class SelectWrites(Selection):
    """Selects each value before the stock optimizer writes it, so no second copy is kept.

    A later read returns the selected value, so XLA can write each array in place.
    """

    def __init__(self, port, switch, own):
        super().__init__(port, switch, own)
        self.switch = switch  # applies to the current writes
        self.kept = {}  # results that are computed once per update
        self._scope = _WriteScope(self)

    def __enter__(self):
        super().__enter__()
        self._scope.__enter__()

    def __exit__(self, *error):
        self._scope.__exit__(*error)
        super().__exit__(*error)

    @property
    def lets_all_through(self):
        return is_certain(self.switch)

    @contextlib.contextmanager
    def by_update(self):
        own, self.own = self.own, {}
        try:
            yield
        finally:
            self.own = own

    @contextlib.contextmanager
    def of(self, variable):
        """A scope in which the switch of this variable applies to all writes."""
        before = self.switch
        self.switch = self.own.get(self.port.index(variable), self.of_update)
        try:
            yield
        finally:
            self.switch = before

    def selected(self, value, otherwise):
        if self.lets_all_through:
            return value
        return ops.where(self.switch > 0, ops.cast(value, otherwise.dtype), otherwise)


class _WriteScope(keras.StatelessScope):
    """A scope in which a Keras variable keeps its own value, and assigned values are selected."""

    def __init__(self, selection):
        super().__init__()
        self._selection = selection

    def get_current_value(self, variable):
        outer = self.original_scope  # the scope of JAX's `stateless_apply`, if any
        return None if outer is None else outer.get_current_value(variable)

    def add_update(self, update):
        (variable, value), selection = update, self._selection
        is_weight = selection.port.index(variable) is not None
        with selection.of(variable) if is_weight else contextlib.nullcontext():
            value = selection.selected(value, selection.port.value(variable))
        if self.original_scope is None:
            variable._direct_assign(value)
        else:
            self.original_scope.add_update((variable, value))


class SelectAfter(Selection):
    """After the update, restores each variable whose switch is 0.

    No write can bypass this selection, however an optimizer writes. The selection keeps a second
    copy of the variables.
    """

    def __enter__(self):
        super().__enter__()
        port = self.port
        named = port.rule_variables()
        self._weights = port.variables
        everything = [*self._weights, *named.values(), port.updates]
        self._all = [] if is_certain(self.of_update) else everything
        owners = port.owners
        self._slots_of_own = {
            index: [
                variable
                for name, variable in named.items()
                if _is_slot_of(name, index) or owners.get(id(variable)) == index
            ]
            for index in self.own
        }
        written = list(self._all)
        for index, slots in self._slots_of_own.items():
            written += [self._weights[index], *slots]
        self._old = {id(variable): port.copy(variable) for variable in written}

    def after_update_steps(self):
        for index, switch in self.own.items():
            for variable in (self._weights[index], *self._slots_of_own[index]):
                self._select(variable, switch, self._old[id(variable)])

    def before_constraints(self):
        self._unconstrained = {index: self.port.copy(self._weights[index]) for index in self.own}

    def __exit__(self, *error):
        super().__exit__(*error)
        if error[0] is None:
            for index, switch in self.own.items():
                self._select(self._weights[index], switch, self._unconstrained[index])
            for variable in self._all:
                self._select(variable, self.of_update, self._old[id(variable)])

    def _select(self, variable, switch, old):
        port = self.port

        def select(variable, target, old):
            port.optimizer.assign(target, ops.where(switch > 0, port.value(target), old))

        port.across(lambda old: port.on(variable, select, old), old)


def _is_slot_of(name, index):
    return states.index_of(name) == index and not name.startswith("moving_average.")
