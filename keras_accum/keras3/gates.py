"""How an update is let through: the stock optimizer runs, and what it writes is selected.

`with gate(optimizer, step, own):` is around the stock optimizer's `apply`. What is written in there
counts where the step's switch is on. `own` has the switches of single variables, by their indices:
those whose gradients are missing in the micro-batch. Where Python has decided that the update is
due, as inside a conditional, the switch is the number 1, and all writes count but those of `own`.
"""

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

    def overwrite(self, variable, target, value):
        """Write what all variables get at the end of a window, whatever their gradients were."""
        raise NotImplementedError


class SelectAfter(Gate):
    """After the update, each variable goes back to what it was where its switch is off.

    Nothing can be written past this gate. XLA fuses the selection into what computes the update.
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

    def overwrite(self, variable, target, value):
        self.optimizer.assign(target, value)

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
        if not optimizer._is_value(variable, old):  # else it wasn't written

            def select(variable, target, old):
                optimizer.assign(target, ops.where(switch > 0, optimizer._value_of(target), old))

            optimizer._across_replicas(
                lambda old: optimizer._on_variable(variable, select, old), old
            )


def _is_slot_of(name, index):
    return states.index_of(name) == index and not name.startswith("moving_average.")
