"""The engine: the steps of a micro-batch, for every Keras. No Keras is imported here.

First, add each gradient to its accumulator, in place unless Python knows that the window closes.
Then let a gate decide whether the update counts, and whether zeros are written to the accumulators.
Last, write the counters. `Accumulation.write` is this list.
"""

import contextlib
import functools
from typing import NamedTuple

import numpy as np

from keras_accum.engine.gradients import MicroBatch, apply_weight, drop_bad, transform
from keras_accum.engine.pending import OF_SUM, Pending
from keras_accum.engine.state import State
from keras_accum.engine.sums import Sums
from keras_accum.engine.window import (
    FORMAT,
    LEAST,
    MISSING,
    OpenWindow,
    Step,
    is_known,
    replace,
    steps_for_absent,
    unconditional,
)
from keras_accum.mistakes import check_once

# A gate is a function of the step and the update that may be made, a `WindowUpdate`.


def select(step, update):
    """Make the update in every micro-batch, and discard its writes unless the switch is 1."""
    update.make(step)


def conditional(step, update):
    """Make the update in a branch of the program that runs if the switch is 1."""
    update.branch(step)


def decide_in_python(step, update):
    """Make the update if Python knows that the switch is 1."""
    if step.is_update:
        update.make(unconditional(step))


class WindowUpdate:
    """The update that a step may make, from the window's sums or without a window from gradients.

    variables: those of the step. absent: indices of others, without a gradient in this micro-batch,
    which the update covers if they had one in the window. frozen: variables whose sums are dropped.
    batch: the micro-batch until its gradients are in the sums.
    """

    def __init__(self, accumulation, variables, absent=(), frozen=(), batch=None):
        self._accumulation, self._sums, self.batch = accumulation, accumulation.sums, batch
        self._variables, self._absent, self._frozen = variables, absent, frozen

    def branch(self, step):
        """Make the update in a branch that runs if the switch is 1."""
        self._accumulation.update.branch(step, lambda step: self.make(unconditional(step)))

    def make(self, step):
        """Make the update. Its writes count where the switch is 1."""
        accumulation, variables = self._accumulation, self._variables
        step_of = steps_for_absent(step, self._absent)
        steps = [step] * len(variables) + list(step_of.values())
        if step_of:
            variables = [*variables, *(accumulation.store.variables[index] for index in step_of)]
        if accumulation.window is None:
            totals = list(map(accumulation.values.dense, self.batch.gradients))
        else:
            totals = self._sums.totals(variables, self.batch)
        if variables:  # a partial window may cover only frozen variables
            # A function: its operations belong to the update, in which writes are held back.
            average = functools.partial(self._average, totals, variables, steps)
            switches = [of_variable.switch for of_variable in steps]
            accumulation.update.run(step, average, variables, switches)
        if accumulation.window is not None:
            self._keep(step, totals, variables)

    def _average(self, totals, variables, steps):
        """Return the gradients for the stock optimizer."""
        if self._accumulation.options.window_transforms:
            return transform(self._accumulation, self._sums, totals, variables, steps)
        return self._sums.averages(totals, steps)

    def _keep(self, step, totals, variables):
        """Write what remains in the accumulators, after the update."""
        accumulation = self._accumulation
        if self._frozen:
            sums = accumulation.store.list_sums(self._frozen)
            totals = [*totals, *map(accumulation.values.value, sums)]
            variables = [*variables, *self._frozen]
        with accumulation.update.after_writes():
            self._sums.keep(step, totals, variables)


class Counts(NamedTuple):
    """How far the window is, as ints.

    length: of the open window, or of the next one if none is open.
    next_length: of the window after the open one.
    """

    position: int
    length: int
    next_length: int


class Accumulation:
    """Gradient accumulation for one optimizer, which has it as its one additional attribute.

    options: this package's arguments; see `options`.
    values, replicas, store, sums, update: the optimizer's Keras; see `parts`.
    window: the open window's variables; None without accumulation or before `build`.
    state: reads, writes and loads the state; see `state`.
    pending: the arguments of `weigh`, `close_window` and `decide`; see `pending`.
    """

    def __init__(self, optimizer, options, parts):
        self.optimizer, self.options = optimizer, options
        self.values, self.replicas, self.store, self.update = parts
        self.sums = Sums(options, self.values, self.replicas, self.store)
        self.window = None
        self.state, self.pending = State(self), Pending(self)
        self.weighing_callback = None  # the one by which `fit` itself weighs micro-batches
        self.has_unended_fit = False  # True from the first batch of a `fit` until it ends
        self.may_lack_weights = False  # True from a load until `fit` goes on with its window
        self.weighs_window = False  # True in its first step, if the window has no weights
        self._error_in_build = None

    @contextlib.contextmanager
    def building(self, variables):
        """Scope in which the stock optimizer creates its variables for those of the model.

        It ends with the window's. After an error in it, the optimizer can't be built.
        """
        self.check_build()
        try:
            yield
            self.store.variables = variables
            self.store.check_names()
            self.open_window()
        except BaseException as error:
            self._error_in_build = repr(error)
            if not self.options.is_stock:
                self.store.variables = ()
            raise

    def check_build(self):
        """Raise a RuntimeError if an earlier `build` failed."""
        if self._error_in_build is not None:
            raise RuntimeError(
                f"`build` of {type(self.optimizer).__name__} ended with {self._error_in_build}, "
                "and may lack variables: compile the model with a new optimizer."
            )

    def open_window(self):
        """Create the window's counters and accumulators once the model's variables are known."""
        if self.options.accumulates and self.window is None and self.store.variables:
            self.window = OpenWindow(self.values, self.store, self.options)

    # -- a micro-batch -----------------------------------------------------------------------------

    def micro_batch(self, gradients, variables):
        """Add a micro-batch's gradients, and update if it closes the window."""
        self.process(self.reduce(gradients, variables))

    def reduce(self, gradients, variables):
        """Return the micro-batch, weighted if it has a weight and summed over replicas."""
        weight = self.pending.take_weight() if self.options.weighs else None
        if weight is None or weight is OF_SUM:
            summed = self.replicas.reduce(gradients, variables)
            return self.unweighted(summed, variables, is_sum=weight is OF_SUM)
        batch = apply_weight(self, weight, gradients, variables)
        weighted = batch.gradients, variables, batch.weight, self.window.weight
        gradients, weight = self.replicas.reduce_weighted(*weighted)
        if self.weighs_window:
            self._weigh_window(weight)
        return replace(batch, gradients=gradients, weight=weight)

    def _weigh_window(self, weight):
        """Let the micro-batches in the window, which count 1 each, weigh as much as this one."""
        values, ops, window = self.values, self.values.ops, self.window
        before, one = values.value(window.weight), ops.ones_like(values.value(window.weight))
        position = values.cast(values.read_counter(window.named["window_position"]), before.dtype)
        # False in later steps of a program that runs several.
        are_unweighed = ops.equal(before * (before - position), 0)
        factor = ops.where(weight > LEAST, values.cast(weight, before.dtype), one)
        factor = ops.where(are_unweighed, factor, one)
        total = ops.where(are_unweighed, position * factor, before)
        sums = self.store.sums
        scaled = values.scale_all(list(map(values.value, sums)), factor)
        self.replicas.on_each(sums, lambda _, target, value: target.assign(value), scaled)
        self.replicas.across(lambda total: self.update.assign(window.weight, total), total)

    def unweighted(self, gradients, variables, is_sum=False):
        """Return a micro-batch that counts 1, its gradients already summed over replicas."""
        weight = self.values.scalar(1, self.window.weight.dtype) if self.options.weighs else None
        return MicroBatch(gradients, variables, weight, is_sum=is_sum)

    def process(self, batch):
        """Process a micro-batch, its gradients already summed over replicas."""
        batch = self.receive(batch)
        step = self.next_step(batch)
        absent, frozen = self.split_frozen(batch.absent)
        self.write(step, WindowUpdate(self, batch.variables, absent, frozen, batch))

    def write(self, step, update):
        """Add the micro-batch of an update, let a gate decide whether it is made, and count."""
        if self.window is not None and update.batch is not None:
            update.batch = self.sums.add(step, update.batch)
        self.choose_gate(step)(step, update)
        self.count(step)

    def receive(self, batch):
        """Return the micro-batch with `counted`, `absent`, and zeros if it is dropped."""
        absent = ()
        if batch.variables is not self.store.variables:
            check_once(self.store, batch.variables)
            if self.options.accumulates:
                present = set(map(self.store.key, batch.variables))
                of_model = map(self.store.key, self.store.variables)
                absent = [index for index, key in enumerate(of_model) if key not in present]
        if self.options.drops:
            counted, gradients = drop_bad(self, batch)
        else:
            counted, gradients = self.values.one_when_computed(batch.gradients), batch.gradients
        return replace(batch, gradients=gradients, counted=counted, absent=absent)

    def next_step(self, batch):
        """Return the micro-batch's step. What Python knows of it decides the gate."""
        is_update = self.pending.take("decide")
        closes = self._closes(is_update)
        if self.window is None:  # without accumulation each micro-batch is an update
            step = Step(batch.counted, batch.counted, 1, 0)
        else:
            step = self.window.step(batch, closes, is_update)
        if self.options.always_updates:
            is_update = True
        elif is_update is None and is_known(step.switch):
            is_update = bool(step.switch)
        return replace(step, is_update=is_update)

    def _closes(self, is_update):
        """Return 1 or 0 for the argument of `close_window`; None if it wasn't called."""
        closes = self.pending.take("close_window")
        if closes is None:
            return None
        if is_update is not None:
            raise ValueError(
                "`close_window` can't be used with `decide`, which decides in Python when a window "
                f"closes: use one of them. Received: when={closes}"
            )
        return self.replicas.in_any(self.values.count_if(closes))

    def choose_gate(self, step):
        """Return the gate for a step, from what `next_step` knows.

        On a GPU, the host would wait for the switch at each branch, so "auto" mostly selects.
        """
        gate = self.options.gate
        if step.is_update is not None:
            return decide_in_python
        if gate == "auto":
            return conditional if self.update.prefers_branch() else select
        return conditional if gate == "conditional" else select

    def count(self, step):
        """Write the counters, after a step's other writes."""
        values = {} if self.window is None else self.window.after(step)

        def across(values, switch):
            for name, value in values.items():
                self.update.assign(self.window.named[name], value)
            self.update.count_updates(switch)

        with self.update.after_writes():
            self.replicas.across(across, values, step.switch)

    def split_frozen(self, indices):
        """Split indices: return those of trainable variables, and the frozen variables."""
        of_model = self.store.variables
        are_frozen = self.store.are_frozen([of_model[i] for i in indices])
        frozen = [of_model[i] for i, is_frozen in zip(indices, are_frozen) if is_frozen]
        return [i for i, is_frozen in zip(indices, are_frozen) if not is_frozen], frozen

    # -- between train steps -----------------------------------------------------------------------

    def find_frozen(self):
        """Return names of frozen variables with a gradient in each micro-batch of the window."""
        if self.window is None or not self.state.counter("window_position"):
            return []
        always = np.flatnonzero(self.store.read(self.window.named[MISSING])[:-1] == 0).tolist()
        return [self.store.get_name(variable) for variable in self.split_frozen(always)[1]]

    def apply_partial_window(self):
        """Update now, from the micro-batches in the open window.

        The update covers the trainable variables with a gradient in the window.
        """
        missing = self.store.read(self.window.named[MISSING])[:-1]
        seen = np.flatnonzero(missing < self.state.counter("window_position")).tolist()
        indices, frozen = self.split_frozen(seen)
        variables = [self.store.variables[index] for index in indices]

        def update():
            self.write(self.window.closing_step(), WindowUpdate(self, variables, frozen=frozen))

        of_variables = *indices, *map(self.store.key, frozen)
        self.replicas.between_steps(lambda: self.update.between_steps(update, of_variables))

    def discard_window(self):
        """Write what a fresh window has: zeros, but for the length of the next windows."""
        of_window = {} if self.window is None else self.window.named
        for name, variable in of_window.items():
            if name not in ("state_format", "accum_iters"):
                self.store.write(variable, np.zeros(list(map(int, variable.shape))))
        self.has_unended_fit = False

    def note_loaded(self):
        """Note that the window is one of a state or a checkpoint."""
        self.has_unended_fit, self.may_lack_weights = False, True

    def take_unweighed(self):
        """Return True once if the loaded window may have micro-batches without weights."""
        may_lack, self.may_lack_weights = self.may_lack_weights and self.options.weighs, False
        is_old = may_lack and self.state.counter("state_format") < FORMAT
        position = self.state.counter("window_position") if is_old else 0
        if self.window is None:
            return position > 0
        return position > 0 and float(self.store.read(self.window.weight)) in (0, position)

    def read_progress(self):
        """Return the number of completed updates and the position in the window."""
        return self.state.counter("completed_updates"), self.state.counter("window_position")

    def counts(self):
        """Return the window's Counts."""
        updates, position = self.read_progress()
        stored = self.state.counter("accum_iters") if self.options.accumulates else 0
        next_length = int(self.options.next_length(np, stored, updates))
        length = self.state.counter("window_length") if position else next_length
        return Counts(position, length, next_length)
