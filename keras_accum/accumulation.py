"""The engine: what happens in a micro-batch, for every Keras. No host is imported here."""

import dataclasses
from itertools import compress

import numpy as np

from keras_accum import arguments, gates, schedule, skips, transforms, window
from keras_accum.norms import MICRO_BATCH_NORM, SKIPPED, Norms
from keras_accum.open_window import OpenWindow
from keras_accum.running import Running
from keras_accum.said import Said
from keras_accum.state import State
from keras_accum.training import Training
from keras_accum.weights import Weights

_CLOSED_OUTSIDE = (
    "`close_window` was called outside of the traced function that applies the gradients. The "
    "decision would become a constant of that function. Call `close_window` in the traced "
    "function, where `when` may be a tensor, or call `apply_partial_window()` between train steps. "
    "Received: when={}"
)
_DECIDED_OUTSIDE = (
    "`decide` was called outside of the traced function that applies the gradients, which would "
    "make the decision for all its calls. Call `decide` in the traced function, with a static "
    "argument of the function. Received: is_update={}"
)
_DECIDED = (
    "`close_window` can't be used with PythonGate or `decide`: Python must know before a "
    "micro-batch whether the micro-batch closes the window. Use one of them. Received: when={}"
)


class Accumulation:
    """The accumulation of one optimizer: the optimizer's one attribute of ours.

    options: the arguments of ours; see `options`.
    port: what the optimizer's Keras does; see `port`.
    window: the variables of the open window, None without accumulation or before `build`.
    state: the state, to read, write and load; see `state`.
    """

    def __init__(self, optimizer, options, port):
        self._optimizer, self.options, self.port = optimizer, options, port
        self.window = None
        self.weights, self.norms, self.training = Weights(self), Norms(port), Training(self)
        self.closings, self.decisions = Said(self, _CLOSED_OUTSIDE), Said(self, _DECIDED_OUTSIDE)
        self.state, self.running = State(optimizer, self), Running(optimizer, self)
        # False until the optimizer's constructor has ended.
        self.is_ready = False
        # True after a train step was run or traced: from then on its variables are fixed.
        self.has_stepped = False
        # Functions that are called after a window was closed between train steps.
        self.closing_watchers = []

    def open_window(self):
        """Make the counters and accumulators if the model's variables are known."""
        port = self.port
        if self.options.accumulates and self.window is None and port.variables:
            if self.options.reduces_late and any(map(port.overwrites, port.variables)):
                raise ValueError(
                    "all_reduce='per_window' can't be used with float8, whose scales are "
                    "overwritten by gradients and not summed. Leave all_reduce out."
                )
            self.window = OpenWindow(port, self.options)

    # -- one micro-batch -------------------------------------------------------------------------

    def micro_batch(self, gradients, variables):
        """Take the gradients of a micro-batch, and make the update if it closes the window."""
        self.take(*self.reduce(gradients, variables), variables)

    def reduce(self, gradients, variables):
        """Return the gradients summed over replicas, and the weight of the micro-batch, if any.

        With `all_reduce="per_window"`, the sums of the window are summed over replicas instead.
        """
        weight = None
        if self.options.weighs:
            gradients, weight = self.weights.apply(gradients, variables)
        if self.options.reduces_late:
            return gradients, weight
        return self._over_replicas(gradients, weight, variables)

    def _over_replicas(self, tensors, weight, variables):
        if weight is None:
            return self.port.reduce(tensors, variables), None
        everything = [*variables, self.window.weight]
        *tensors, weight = self.port.reduce([*tensors, weight], everything)
        return tensors, weight

    def take(self, gradients, weight, variables):
        """Take the reduced gradients of a micro-batch."""
        port = self.port
        self.running.count()
        keys = [port.key(variable) for variable in variables]
        arguments.check_once(keys, lambda key: port.name_of(variables[keys.index(key)]))
        summed = [not port.overwrites(variable) for variable in variables]
        counted, gradients = skips.counted(port, self.options, gradients, summed, weight)
        self.norms.write(MICRO_BATCH_NORM, list(compress(gradients, summed)), counted)
        self.norms.count(SKIPPED, 1 - counted)
        absent = self._absent(keys)
        decision = self.decisions.take()
        step = self._step(counted, weight, absent, decision)
        self._gate(step, decision)(
            port,
            step,
            gradients,
            update=lambda step, gradients: self._update(step, gradients, variables, absent),
            add=lambda step, gradients: self._add(gradients, variables),
        )
        self._count(step)

    def _count(self, step):
        """Write the counters after all other writes of a step."""
        values = {} if self.window is None else self.window.after(step)
        with self.port.after_writes():
            self.port.across(self._write_counters, values, step.switch)

    def _write_counters(self, values, switch):
        for name, value in values.items():
            self.port.assign(self.window.named[name], value)
        self.port.count_updates(switch)

    def _absent(self, keys):
        """Return the indices of the variables whose gradients are missing."""
        if not self.options.accumulates:
            return []
        present = set(keys)
        return [index for index, key in enumerate(self.port.keys) if key not in present]

    def _step(self, counted, weight, absent, decision):
        """Return the step of the window, before its counters are written."""
        port, open_window = self.port, self.window
        if open_window is None:  # each micro-batch that counts is an update
            return window.Step(counted, counted, 1, 0, None, None)
        counters, closes = open_window.read(), self._closes(decision)
        if decision is None:
            step = window.advance(port.counts_with, *counters, counted, closes)
        else:
            step = window.decided(port.counts_with, *counters, counted, decision)
        if absent:
            counts = map(port.count_of, (open_window.missing, port.updates))
            step = window.miss(port.counts_with, step, *counts, absent, counted)
        if weight is not None:
            weight = weight * port.cast(counted, weight.dtype)
            step = step._replace(divisor=port.value(open_window.weight) + weight)
        return step

    def _closes(self, decision):
        """Return the count 1 if a train step said that its micro-batch closes the window."""
        when = self.closings.take()
        if when is None:
            return None
        if decision is not None:
            raise ValueError(_DECIDED.format(when))
        return self.port.in_any_replica(self.port.count_if(when))

    def _gate(self, step, decision):
        """Return the gate of this step: the one place that decides it."""
        is_due = True if self.options.always_updates else decision
        if is_due is None:
            is_due = self.port.known(step)
        if is_due is not None:
            return gates.known(is_due)
        return gates.conditional if self.options.gate == "conditional" else gates.select

    def _add(self, gradients, variables):
        """Add the gradients of a micro-batch to their sums, without an update."""
        if self.window is not None:
            sums = list(map(self.window.sum_of, variables))
            self.port.across(
                lambda *gradients: self.port.add_all(sums, gradients, variables), *gradients
            )

    def _update(self, step, gradients, variables, absent):
        """Make the update from the window's sums and these gradients.

        The variables in `absent` (indices) are updated if they had a gradient earlier in the
        window.
        """
        port, known = self.port, self.port.variables
        absent, frozen = self._apart_from_frozen(absent)
        steps = port.steps_of(step, absent)
        if self.window is None:
            totals = [port.dense(gradient) for gradient in gradients]
        else:
            totals = port.totals(list(map(self.window.sum_of, variables)), gradients, variables)
        others = [known[index] for index in steps]
        totals += [port.value(self.window.sum_of(variable)) for variable in others]
        steps = [step] * len(variables) + list(steps.values())
        self._update_from(step, steps, totals, [*variables, *others], frozen)

    def _update_from(self, step, steps, totals, variables, frozen):
        """Make the update from the sums of a window.

        `steps` has the step of each variable. The `frozen` variables aren't updated, and their sums
        are dropped.
        """
        port = self.port
        if self.options.reduces_late:
            weight = step.divisor if self.options.weighs else None
            totals, weight = self._over_replicas(totals, weight, variables)
            if weight is not None:
                reduced = {id(s): s._replace(divisor=weight) for s in (step, *steps)}
                step, *steps = [reduced[id(s)] for s in (step, *steps)]
        if variables:  # a partial window can be one of frozen variables only
            averages = transforms.averages(port, self.options, totals, variables, steps)
            with self.running.update():
                port.update(step, averages, variables, [step.switch for step in steps])
        if self.window is not None:
            totals = [*totals, *(port.value(self.window.sum_of(v)) for v in frozen)]
            port.keep(step, totals, [*variables, *frozen])

    # -- frozen variables --------------------------------------------------------------------------

    def _apart_from_frozen(self, indices):
        """Return the indices of variables that aren't frozen, and the frozen variables."""
        known = self.port.variables
        are_frozen = self.port.are_frozen([known[i] for i in indices])
        frozen = [i for i, is_frozen in zip(indices, are_frozen) if is_frozen]
        return sorted({*indices} - {*frozen}), [known[i] for i in frozen]

    # -- between train steps -----------------------------------------------------------------------

    def close_window(self):
        """Make the update of the open window now, from the micro-batches in the window.

        The update covers the variables that have had a gradient in the window and aren't frozen.
        """
        port, open_window = self.port, self.window
        indices = range(len(port.variables))
        if open_window.missing is not None:
            missing = port.read(open_window.missing)
            indices = np.flatnonzero(window.was_seen(missing, *self.progress())).tolist()
        covered, frozen = self._apart_from_frozen(list(indices))
        port.between_steps(self._update_from_sums, [port.variables[i] for i in covered], frozen)
        for watcher in self.closing_watchers:
            watcher()

    def _update_from_sums(self, variables, frozen):
        open_window = self.window
        position, length, _ = open_window.read()
        step = window.close(position, length)
        if self.options.weighs:
            step = step._replace(divisor=self.port.value(open_window.weight))
        totals = [self.port.value(open_window.sum_of(v)) for v in variables]
        self._update_from(step, [step] * len(variables), totals, variables, frozen)
        self._count(step)

    def set_next_length(self, length):
        """Set the length of the next window, also before the window's variables exist."""
        counter = self.state.counters.get("accum_iters")
        if counter is None:
            self.options = dataclasses.replace(self.options, first_length=length)
        else:
            self.port.write(counter, length)

    # -- what is reached -------------------------------------------------------------------------

    def progress(self):
        """Return the number of completed updates, and the position in the window, as ints."""
        return self.state.completed_updates(), self.state.count("window_position", 0)

    def counts(self):
        """Return position, length and next length of the window, as ints."""
        next_length = schedule.length_at(self._optimizer.accum_iters, 0)
        position = self.state.count("window_position", 0)
        return [position, self.state.count("window_length", next_length), next_length]
