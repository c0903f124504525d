"""The window's gradient sums: `Sums`, and the one for all Keras but eager PyTorch.

No Keras is imported here.
"""

import abc

from keras_accum.engine.window import scale


class Sums(abc.ABC):
    """The gradient sums of one optimizer's open window, in the accumulators of its store.

    multiply: True if `add` and `totals` multiply by a micro-batch's `factor`.
    """

    multiply = False

    def __init__(self, options, values, replicas, store):
        self.options, self.values, self.replicas, self.store = options, values, replicas, store

    def in_step(self):
        """Return the sums for the current step."""
        return self

    @abc.abstractmethod
    def as_summed(self, gradients, variables):
        """Return gradients in the dtypes of their sums: half precision could overflow."""

    @abc.abstractmethod
    def add(self, step, batch):
        """Add a micro-batch's gradients. Nothing but their own gradients may delay additions.

        Return None, or the micro-batch if `totals` is to add it.
        """

    @abc.abstractmethod
    def totals(self, variables, batch=None):
        """Return the gradient sums for an update, with the micro-batch that `add` returned.

        The variables begin with those of the step's micro-batch, if it has one.
        """

    @abc.abstractmethod
    def averages(self, totals, variables, steps):
        """Return the gradients for an update: scaled sums, or zeros inside a window.

        `steps` has one for each variable.
        """

    @abc.abstractmethod
    def keep(self, step, totals, variables):
        """Write what remains in the accumulators: all inside a window, zeros after its end."""

    @abc.abstractmethod
    def mark(self):
        """Return what `undo` needs, before a step that Python runs."""

    @abc.abstractmethod
    def is_added(self, mark):
        """Return True if gradients were added since the mark, and `undo` can't take them back."""

    @abc.abstractmethod
    def undo(self, mark):
        """Take back the additions of a failed step."""

    @abc.abstractmethod
    def clear(self):
        """Set all sums to zero."""


class TracedSums(Sums):
    """Sums for steps that a framework may trace. They run eagerly just as well."""

    def as_summed(self, gradients, variables):
        totals = self.store.list_sums(variables)
        return [self.values.cast(g, total.dtype) for g, total in zip(gradients, totals)]

    def add(self, step, batch):
        totals, values = self.store.list_sums(batch.variables), self.values
        are_summed = dict(zip(map(id, totals), self.store.are_summed(batch.variables)))

        def add(total, target, gradient):
            if are_summed[id(total)]:
                return values.add_in_place(target, gradient)
            # float8's scales: the maximum, as in Keras's own
            return target.assign(values.ops.maximum(values.value(target), gradient))

        self.replicas.on_each(totals, add, batch.gradients)

    def totals(self, variables, batch=None):
        return list(map(self.values.value, self.store.list_sums(variables)))

    def averages(self, totals, variables, steps):
        values, scales = self.values, []  # (step, {dtype: scale})

        def average(total, variable, step):
            if not self.store.is_summed(variable):
                return total
            # Equal steps are neighbours: each scale is computed once. A key with the step's `id`
            # would make `torch.compile` compile each step again.
            if not (scales and scales[-1][0] is step):
                scales.append((step, {}))
            by_dtype = scales[-1][1]
            if total.dtype not in by_dtype:
                by_dtype[total.dtype] = scale(
                    values.ops,
                    step,
                    self.options,
                    lambda value: values.cast(value, total.dtype),
                )
            return values.times(total, by_dtype[total.dtype])

        return list(map(average, totals, variables, steps))

    def keep(self, step, totals, variables):
        cast, values = self.values.cast, self.values
        factors = {total.dtype: cast(1 - step.switch, total.dtype) for total in totals}
        holds = [factors[total.dtype] for total in totals]
        sums = dict(zip(map(id, variables), self.store.list_sums(variables)))

        def write(variable, target, total, hold):
            return sums[id(variable)].assign(values.remainder(total, hold, target))

        self.replicas.on_each(variables, write, totals, holds)

    def mark(self):
        return list(map(self.values.value, self.store.sums))

    def is_added(self, mark):
        return False

    def undo(self, mark):
        for total, value in zip(self.store.sums, mark):
            total.assign(value)

    def clear(self):
        for total in self.store.sums:
            total.assign(self.values.ops.zeros_like(total))
