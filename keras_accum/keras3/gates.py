"""How an update is let through: the stock optimizer runs, and what it writes is selected.

`with gate(optimizer, step, own):` is around the stock optimizer's `apply`. What is written in there
counts where the step's switch is on. `own` has the switches of single variables, by their indices:
those whose gradients are missing in the micro-batch. Where Python has decided that the update is
due, as inside a conditional, the switch is the number 1, and all writes count but those of `own`.
"""

import contextlib

import keras
from keras import ops

from keras_accum import states


class Gate:
    """What all gates do: the optimizer finds the gate of the update that it's making."""

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
        """Weights and slots are written; moving averages and constraints are still to come."""

    def before_constraints(self):
        """All is written but what constraints write."""

    def by_window(self):
        """A scope in which all variables are written by the window's switch."""
        return contextlib.nullcontext()

    def of(self, variable):
        """A scope in which what is written is written for this variable."""
        return contextlib.nullcontext()


class SelectWrites(Gate):
    """What the stock optimizer writes is selected before it's written: no second copy is kept.

    What it reads afterwards is what was written. So XLA writes each array where it stands.
    """

    def __init__(self, optimizer, step, own):
        super().__init__(optimizer, step, own)
        self.switch = step.switch  # of what is being written
        self.kept = {}  # what is computed once for an update
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
    """In here a Keras variable has its own value, and what is assigned to it is selected."""

    def __init__(self, gate):
        super().__init__()
        self._gate = gate

    def get_current_value(self, variable):
        outer = self.original_scope  # of JAX's `stateless_apply`
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
    """After the update, each variable goes back to what it was where its switch is off.

    Nothing can be written past this gate, however an optimizer writes. It keeps a second copy.
    """

    def __enter__(self):
        super().__enter__()
        optimizer = self.optimizer
        named = optimizer._named_rule_variables()
        self._weights = optimizer._trainable_variables
        others = [] if self.is_decided else [*named.values(), optimizer._iterations]
        self._all = [] if self.is_decided else [*self._weights, *others]
        self._of_own = {
            index: [v for n, v in named.items() if _is_slot_of(n, index)] for index in self.own
        }
        written = [*self._all, *(v for i in self.own for v in (self._weights[i], *self._of_own[i]))]
        self._old = {id(variable): self._copy(variable) for variable in written}

    def after_update_steps(self):
        for index, switch in self.own.items():
            for variable in (self._weights[index], *self._of_own[index]):
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
