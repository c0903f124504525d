"""The engine: the steps of a micro-batch, for every Keras. No Keras is imported here.

First, add each gradient in place to its accumulator. Then let a gate decide whether the update
counts: a function of the engine, the step and `update(step)`, which reads the accumulators. Last,
write what remains in the accumulators, and the counters.
"""

import contextlib

import numpy as np

from keras_accum.engine.gradients import drop_bad, transform, weigh
from keras_accum.engine.pending import Pending
from keras_accum.engine.state import State
from keras_accum.engine.window import MISSING, OpenWindow, Step, certain, is_known


def select(accumulation, step, update):
    """Make the update in every micro-batch, and discard its writes unless the switch is 1."""
    update(step)


def conditional(accumulation, step, update):
    """Make the update in a branch of the program that runs if the switch is 1."""
    accumulation.update.branch(step, lambda step: update(certain(step)))


def decide_in_python(is_update):
    """Return the gate for a switch that Python already knows."""

    def gate(accumulation, step, update):
        if is_update:
            update(certain(step))

    return gate


class Accumulation:
    """Gradient accumulation for one optimizer, which has it as its one additional attribute.

    options: this package's arguments; see `options`.
    values, replicas, store, update: the optimizer's Keras; see `parts`.
    window: the open window's variables; None without accumulation or before `build`.
    state: reads, writes and loads the state; see `state`.
    pending: the arguments of `weigh`, `close_window` and `decide`; see `pending`.
    """

    def __init__(self, optimizer, options, parts):
        self.optimizer, self.options = optimizer, options
        self.values, self.replicas, self.store, self.update = parts
        self.window = None
        self.state, self.pending = State(self), Pending(self)
        self.in_fit = None  # the callback that `fit` itself weighs micro-batches with
        # A Counter of the micro-batches run or traced, by replica. None unless a PythonGate needs
        # it: `torch.compile` compiles again if a number changes in each micro-batch.
        self.micro_batches = None
        self._torn_by = None  # the error in `build`

    @contextlib.contextmanager
    def building(self):
        """Scope for creating the optimizer's variables. After an error in it, it can't be built."""
        if self._torn_by is not None:
            raise RuntimeError(
                f"`build` of {type(self.optimizer).__name__} ended with {self._torn_by}, and may "
                "lack variables: compile the model with a new optimizer."
            )
        try:
            yield
        except BaseException as error:
            self._torn_by = repr(error)
            if not self.options.is_stock:
                self.store.variables = ()
            raise

    def open_window(self):
        """Create the window's counters and accumulators once the model's variables are known."""
        if self.options.accumulates and self.window is None and self.store.variables:
            self.window = OpenWindow(self.values, self.store, self.options)

    def micro_batch(self, gradients, variables):
        """Add a micro-batch's gradients, and update if it closes the window."""
        self.take(*self.reduce(gradients, variables), variables)

    def reduce(self, gradients, variables):
        """Sum the gradients over replicas. Return them, and the micro-batch's weight if any."""
        if not self.options.weighs:
            return self.replicas.reduce(gradients, variables), None
        gradients, weight = weigh(self, gradients, variables)
        tensors, of_variables = [*gradients, weight], [*variables, self.window.weight]
        *gradients, weight = self.replicas.reduce(tensors, of_variables)
        return gradients, weight

    def take(self, gradients, weight, variables):
        """Process a micro-batch, its gradients already summed over replicas."""
        if self.micro_batches is not None:
            self.micro_batches[self.replicas.index()] += 1
        self.store.check_once(variables)
        if self.options.drops:
            counted, gradients = drop_bad(self, gradients, weight, variables)
        else:
            counted = self.values.one_after(gradients)
        is_update, absent = self.pending.take("decide"), []
        if self.options.accumulates:
            present = set(map(self.store.key, variables))
            of_model = map(self.store.key, self.store.variables)
            absent = [index for index, key in enumerate(of_model) if key not in present]
        closes = self._closes(is_update)
        if self.window is None:  # without accumulation each micro-batch is an update
            step = Step(counted, counted, 1, 0, None, None)
        else:
            step = self.window.step(counted, weight, absent, closes, is_update)
        gate = self._gate(step, is_update)

        def write():
            if self.window is not None:
                self.update.add(step, self._list_sums(variables), gradients, variables)
            gate(self, step, lambda step: self._update(step, gradients, variables, absent))

        self._write(step, write)

    def _closes(self, is_update):
        """Return 1 or 0 for the argument of `close_window`; None if it wasn't called."""
        closes = self.pending.take("close_window")
        if closes is None:
            return None
        if is_update is not None:
            raise ValueError(
                "`close_window` can't be used with PythonGate or `decide`, which decide in Python "
                f"when a window closes: use one of them. Received: when={closes}"
            )
        return self.replicas.in_any(self.values.count_if(closes))

    def _gate(self, step, is_update):
        """Choose the gate for a step. No other place decides it."""
        gate = self.options.gate
        if self.options.always_updates:
            return decide_in_python(True)
        if is_update is not None:
            return decide_in_python(is_update)
        if is_known(step.switch):
            return decide_in_python(bool(step.switch))
        if gate == "auto":
            return conditional if self.update.prefers_branch() else select
        return conditional if gate == "conditional" else select

    def _update(self, step, gradients, variables, absent):
        """Update from the window's accumulators, or without a window from these gradients.

        `absent` has the indices of variables without a gradient in this micro-batch.
        """
        of_model = self.store.variables
        absent, frozen = self._apart_from_frozen(absent)
        others = self.update.find_steps(step, absent)
        steps = [step] * len(variables) + list(others.values())
        variables = [*variables, *(of_model[index] for index in others)]
        if self.window is None:
            totals = list(map(self.values.dense, gradients))
        else:
            totals = self._totals(variables)
        self._update_from(step, steps, totals, variables, frozen)

    def _list_sums(self, variables):
        """Return these variables' accumulators."""
        return list(map(self.window.get_sum, variables))

    def _totals(self, variables):
        """Return the gradient sums for an update of these variables."""
        return self.update.totals(self._list_sums(variables), variables)

    def _update_from(self, step, steps, totals, variables, frozen):
        """Update from a window's sums. Drop those of `frozen` variables."""

        def average():
            if self.options.window_transforms:
                return transform(self, totals, variables, steps)
            return self.update.averages(totals, variables, steps)

        if variables:  # a partial window may cover only frozen variables
            self.update.run(step, average, variables, [each.switch for each in steps])
        if self.window is not None:
            dropped = list(map(self.values.value, self._list_sums(frozen)))
            totals, variables = [*totals, *dropped], [*variables, *frozen]
            self.update.keep(step, totals, self._list_sums(variables), variables)

    def _apart_from_frozen(self, indices):
        """Split indices: return those of trainable variables, and the frozen variables."""
        of_model = self.store.variables
        are_frozen = self.store.are_frozen([of_model[i] for i in indices])
        frozen = [of_model[i] for i, is_frozen in zip(indices, are_frozen) if is_frozen]
        return [i for i, is_frozen in zip(indices, are_frozen) if not is_frozen], frozen

    def _write(self, step, write):
        """Call `write()`, then write the counters. If Python runs the step and fails, undo it.

        After `write()`, or once the update is made, complete the step instead.
        """
        update, is_written = self.update, False
        sums = [] if self.window is None else self._list_sums(self.store.variables)
        snapshot = update.snapshot(sums) if sums else None
        try:
            write()
            is_written = True
            self._write_counters(step)
        except BaseException:
            if snapshot is None:
                raise
            is_made = bool(step.switch) and update.is_made(snapshot)
            for total in sums if is_made else ():
                update.clear(total)
            if is_made or is_written or update.is_added(snapshot, sums):
                self._write_counters(step)
            else:
                update.restore(snapshot, sums)
            raise

    def _write_counters(self, step):
        """Write the counters, after a step's other writes."""
        values = {} if self.window is None else self.window.after(step)

        def across(values, switch):
            for name, value in values.items():
                self.update.assign(self.window.named[name], value)
            self.update.count_updates(switch)

        with self.update.after_writes():
            self.replicas.across(across, values, step.switch)

    # -- between train steps -----------------------------------------------------------------------

    def find_frozen(self):
        """Return names of frozen variables with a gradient in each micro-batch of the window."""
        if self.window is None or not self.state.counter("window_position"):
            return []
        always = np.flatnonzero(self.store.read(self.window.named[MISSING])[:-1] == 0).tolist()
        return [self.store.get_name(variable) for variable in self._apart_from_frozen(always)[1]]

    def close_window(self):
        """Update now, from the micro-batches in the open window.

        The update covers the trainable variables with a gradient in the window.
        """
        missing = self.store.read(self.window.named[MISSING])[:-1]
        seen = missing < self.state.counter("window_position")
        covered, frozen = self._apart_from_frozen(np.flatnonzero(seen).tolist())
        variables = [self.store.variables[i] for i in covered]

        def update():
            step = self.window.closing_step()
            steps = [step] * len(variables)

            def write():
                self._update_from(step, steps, self._totals(variables), variables, frozen)

            self._write(step, write)

        self.replicas.between_steps(update)

    def read_progress(self):
        """Return the number of completed updates and the position in the window."""
        return self.state.counter("completed_updates"), self.state.counter("window_position")

    def counts(self):
        """Return position, length and next length of the window, as ints."""
        updates, position = self.read_progress()
        stored = self.state.counter("accum_iters") if self.options.accumulates else 0
        next_length = int(self.options.next_length(np, stored, updates))
        length = self.state.counter("window_length") if position else next_length
        return [position, length, next_length]
