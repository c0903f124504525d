"""The engine: what happens in a micro-batch, for every Keras. No Keras is imported here.

First, each gradient is added in place to its sum. Then a gate decides whether the update counts. A
gate is called with the port, the step, and `update`, a function of a step, which reads the sums.
What is left of the sums and the counters are written last.
"""

import numpy as np

from keras_accum.gradients import check_once, drop_bad, transform, weigh
from keras_accum.pending import Pending
from keras_accum.state import State
from keras_accum.window import MISSING, OpenWindow, Step, certain, is_known


def select(port, step, update):
    """Make an update on every micro-batch, whose writes take effect only if the switch is 1."""
    update(step)


def conditional(port, step, update):
    """Make the update in a branch of the program, which runs if the switch is 1."""
    port.branch(step, lambda step: update(certain(step)))


def decided(is_update):
    """Return the gate of a micro-batch of which Python knows whether it makes an update."""

    def gate(port, step, update):
        if is_update:
            update(certain(step))

    return gate


class Accumulation:
    """The accumulation of one optimizer, in the attribute that this package adds to the optimizer.

    options: the arguments of this package; see `options`.
    port: what the optimizer's Keras does; see `port`.
    window: the variables of the open window, None without accumulation or before `build`.
    state: the state, to read, write and load; see `state`.
    pending: the values of `weigh`, `close_window` and `decide`; see `pending`.
    """

    def __init__(self, optimizer, options, make_port):
        self.optimizer, self.options = optimizer, options
        self.port = make_port(self)
        self.window = None
        self.state, self.pending = State(self), Pending(self)
        # A Counter of the micro-batches that were run or traced, by replica. None without a
        # PythonGate: `torch.compile` compiles again where a number changes with each micro-batch.
        self.micro_batches = None

    def open_window(self):
        """Make the counters and sums of the window if the model's variables are known."""
        if self.options.accumulates and self.window is None and self.port.variables:
            self.window = OpenWindow(self.port, self.options)

    def micro_batch(self, gradients, variables):
        """Take the gradients of a micro-batch, and make the update if it closes the window."""
        self.take(*self.reduce(gradients, variables), variables)

    def reduce(self, gradients, variables):
        """Return the gradients summed over replicas, and the weight of the micro-batch, if any."""
        if not self.options.weighs:
            return self.port.reduce(gradients, variables), None
        gradients, weight = weigh(self, gradients, variables)
        tensors, of_variables = [*gradients, weight], [*variables, self.window.weight]
        *gradients, weight = self.port.reduce(tensors, of_variables)
        return gradients, weight

    def take(self, gradients, weight, variables):
        """Take the reduced gradients of a micro-batch."""
        if self.micro_batches is not None:
            self.micro_batches[self.port.replica()] += 1
        check_once(self.port, variables)
        counted, gradients = drop_bad(self, gradients, weight, variables)
        is_update, absent = self.pending.take("decide"), []
        if self.options.accumulates:
            present = set(map(self.port.key, variables))
            of_model = map(self.port.key, self.port.variables)
            absent = [index for index, key in enumerate(of_model) if key not in present]
        closes = self._closes(is_update)
        if self.window is None:  # each micro-batch that counts is an update
            step = Step(counted, counted, 1, 0, None, None)
        else:
            step = self.window.step(counted, weight, absent, closes, is_update)
            self.port.add(list(map(self.window.sum_of, variables)), gradients, variables)
        gate = self._gate(step, is_update)
        gate(self.port, step, lambda step: self._update(step, gradients, variables, absent))
        self._write_counters(step)

    def _closes(self, is_update):
        """Return 1 if the train step closes the window, else 0; None if it says nothing."""
        closes = self.pending.take("close_window")
        if closes is None:
            return None
        if is_update is not None:
            raise ValueError(
                "`close_window` can't be used with PythonGate or `decide`, by which Python decides "
                f"whether a micro-batch closes the window. Use one. Received: when={closes}"
            )
        return self.port.in_any_replica(self.port.count_if(closes))

    def _gate(self, step, is_update):
        """Return the gate of this step: the one place that decides it."""
        gate = self.options.gate
        if self.options.always_updates:
            return decided(True)
        if is_update is not None:
            return decided(is_update)
        if is_known(step.switch):
            return decided(bool(step.switch))
        if gate == "auto":
            return conditional if self.port.branch_is_free() else select
        return conditional if gate == "conditional" else select

    def _update(self, step, gradients, variables, absent):
        """Make the update from the window's sums, or from these gradients if there is no window.

        `absent` has the indices of variables whose gradients are missing in this micro-batch.
        """
        of_model = self.port.variables
        absent, frozen = self._apart_from_frozen(absent)
        others = self.port.steps_of(step, absent)
        steps = [step] * len(variables) + list(others.values())
        variables = [*variables, *(of_model[index] for index in others)]
        if self.window is None:
            totals = list(map(self.port.dense, gradients))
        else:
            totals = self._sums(variables)
        self._update_from(step, steps, totals, variables, frozen)

    def _sums(self, variables):
        """Return the values of the gradient sums of these variables."""
        return [self.port.value(self.window.sum_of(variable)) for variable in variables]

    def _update_from(self, step, steps, totals, variables, frozen):
        """Make the update from the sums of a window. Those of `frozen` variables are dropped."""
        port = self.port
        if variables:  # a partial window can be one of frozen variables only
            if self.options.window_transforms:
                averages = transform(self, totals, variables, steps)
            else:
                averages = port.averages(totals, variables, steps)
            port.update(step, averages, variables, [each.switch for each in steps])
        if self.window is not None:
            port.keep(step, [*totals, *self._sums(frozen)], [*variables, *frozen])

    def _apart_from_frozen(self, indices):
        """Return the indices of variables that aren't frozen, and the frozen variables."""
        of_model = self.port.variables
        are_frozen = self.port.are_frozen([of_model[i] for i in indices])
        frozen = [of_model[i] for i, is_frozen in zip(indices, are_frozen) if is_frozen]
        return [i for i, is_frozen in zip(indices, are_frozen) if not is_frozen], frozen

    def _write_counters(self, step):
        """Write the counters after all other writes of a step."""
        values = {} if self.window is None else self.window.after(step)

        def across(values, switch):
            for name, value in values.items():
                self.port.assign(self.window.named[name], value)
            self.port.count_updates(switch)

        with self.port.after_writes():
            self.port.across(across, values, step.switch)

    # -- between train steps -----------------------------------------------------------------------

    def close_window(self):
        """Make the update of the open window now, from the micro-batches in the window.

        The update covers the variables that have had a gradient in the window and aren't frozen.
        """
        port = self.port
        missing = port.read(self.window.named[MISSING])[:-1]
        seen = missing < self.state.counter("window_position")
        covered, frozen = self._apart_from_frozen(np.flatnonzero(seen).tolist())
        variables = [port.variables[i] for i in covered]

        def update():
            step = self.window.closing_step()
            steps = [step] * len(variables)
            self._update_from(step, steps, self._sums(variables), variables, frozen)
            self._write_counters(step)

        port.between_steps(update)

    def reached(self):
        """Return the number of completed updates, and the position in the window."""
        return self.state.counter("completed_updates"), self.state.counter("window_position")

    def counts(self):
        """Return position, length and next length of the window, as ints."""
        updates, position = self.reached()
        stored = self.state.counter("accum_iters") if self.options.accumulates else 0
        next_length = int(self.options.next_length(np, stored, updates))
        length = self.state.counter("window_length") if position else next_length
        return [position, length, next_length]
