"""Gates: the stock optimizer runs, and a gate selects which of its writes take effect.

`with gate(optimizer, step, own):` surrounds the stock optimizer's `apply`. A write in this scope
takes effect if the step's switch is 1. `own` has a switch of its own for each variable whose
gradient is missing in the micro-batch, by the variable's index. If Python knows that the update is
due, for example inside a conditional, the switch is the integer 1, and every write takes effect
except writes to the variables of `own`.
"""

import contextlib

import keras
from keras import ops

from keras_accum import states


class Gate:
    """Base class of the gates: registers a gate with the optimizer during an update."""

    def __init__(self, optimizer, step, own):
        self.optimizer = optimizer
        self.step = step
        self.own = own

    def __enter__(self):
        self._gates[self.optimizer._replica()] = self

    def __exit__(self, *error):
        del self._gates[self.optimizer._replica()]

    @property
    def _gates(self):
        return self.optimizer._gates_by_replica

    @property
    def is_decided(self):
        return isinstance(self.step.switch, int)

    def after_update_steps(self):
        """Called after weights and slots are written, before moving averages and constraints."""

    def before_constraints(self):
        """Called after all writes except the constraints'."""

    def by_window(self):
        """A scope in which the window's switch applies to all variables."""
        return contextlib.nullcontext()

    def of(self, variable):
        """A scope in which the switch of this variable applies to all writes."""
        return contextlib.nullcontext()


class SelectWrites(Gate):
    """Selects each value before the stock optimizer writes it, so no second copy is kept.

    A later read returns the selected value, so XLA can write each array in place.
    """

    def __init__(self, optimizer, step, own):
        super().__init__(optimizer, step, own)
        self.switch = step.switch  # applies to the current writes
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
        return isinstance(self.switch, int)

    @contextlib.contextmanager
    def by_window(self):
        own, self.own = self.own, {}
        try:
            yield
        finally:
            self.own = own

    @contextlib.contextmanager
    def of(self, variable):
        before = self.switch
        self.switch = self.own.get(self.optimizer._get_variable_index(variable), self.step.switch)
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

    def __init__(self, gate):
        super().__init__()
        self._gate = gate

    def get_current_value(self, variable):
        outer = self.original_scope  # the scope of JAX's `stateless_apply`, if any
        return None if outer is None else outer.get_current_value(variable)

    def add_update(self, update):
        variable, value = update
        optimizer = self._gate.optimizer
        is_weight = optimizer._var_key(variable) in optimizer._trainable_variables_indices
        with self._gate.of(variable) if is_weight else contextlib.nullcontext():
            value = self._gate.selected(value, optimizer._value_of(variable))
        if self.original_scope is None:
            variable._direct_assign(value)
        else:
            self.original_scope.add_update((variable, value))


class SelectAfter(Gate):
    """After the update, restores each variable whose switch is 0.

    No write can bypass this gate, however an optimizer writes. The gate keeps a second copy of the
    variables.
    """

    def __enter__(self):
        super().__enter__()
        optimizer = self.optimizer
        named = optimizer._named_rule_variables()
        self._weights = optimizer._trainable_variables
        others = [] if self.is_decided else [*named.values(), optimizer._iterations]
        self._all = [] if self.is_decided else [*self._weights, *others]
        self._slots_of_own = {
            index: [
                variable
                for name, variable in named.items()
                if _is_slot_of(name, index) or optimizer._owners_of_slots.get(id(variable)) == index
            ]
            for index in self.own
        }
        written = list(self._all)
        for index, slots in self._slots_of_own.items():
            written += [self._weights[index], *slots]
        self._old = {id(variable): self._copy(variable) for variable in written}

    def after_update_steps(self):
        for index, switch in self.own.items():
            for variable in (self._weights[index], *self._slots_of_own[index]):
                self._select(variable, switch, self._old[id(variable)])

    def before_constraints(self):
        self._unconstrained = {index: self._copy(self._weights[index]) for index in self.own}

    def __exit__(self, *error):
        super().__exit__(*error)
        if error[0] is None:
            for index, switch in self.own.items():
                self._select(self._weights[index], switch, self._unconstrained[index])
            for variable in self._all:
                self._select(variable, self.step.switch, self._old[id(variable)])

    def _copy(self, variable):
        return self.optimizer._copy_of_value(variable)

    def _select(self, variable, switch, old):
        optimizer = self.optimizer

        def select(variable, target, old):
            optimizer.assign(target, ops.where(switch > 0, optimizer._value_of(target), old))

        optimizer._across_replicas(lambda old: optimizer._on_variable(variable, select, old), old)


def _is_slot_of(name, index):
    return states.index_of(name) == index and not name.startswith("moving_average.")
