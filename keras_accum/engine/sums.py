"""The window's gradient sums, on every Keras. No Keras is imported here."""

import itertools

import numpy as np

from keras_accum.engine.window import is_known, is_unconditional, scale


class Sums:
    """The gradient sums of one optimizer's open window, in the accumulators of its store.

    If Python knows that a micro-batch closes its window, `add` leaves its gradients to `totals`,
    which adds them out of place. So an update that fails leaves the sums as they were.
    """

    def __init__(self, options, values, replicas, store):
        self.options, self.values, self.replicas, self.store = options, values, replicas, store

    def as_summed(self, gradients, variables):
        """Return gradients in the dtypes of their sums: half precision could overflow."""
        return self.values.cast_each(gradients, self.store.list_sums(variables))

    def add(self, step, batch):
        """Add a micro-batch's gradients. Nothing but their own gradients may delay additions.

        Return None, or the micro-batch if `totals` is to add it. Before anything is written, this
        raises an error if a gradient has another shape than its variable.
        """
        values, totals = self.values, self.store.list_sums(batch.variables)
        gradients = self._fit(batch.gradients, totals)
        if step.is_update:
            return batch  # not with gradients in another dtype, which would take memory until then
        values.add_each(self.replicas, totals, gradients, batch.factor)
        return None

    def _fit(self, gradients, totals):
        """Return gradients in the dtypes and shapes of their sums, or raise an error."""
        return self.values.shape_each(self.values.cast_each(gradients, totals), totals)

    def totals(self, variables, batch=None):
        """Return the gradient sums for an update, with the micro-batch that `add` returned.

        The variables begin with those of the step's micro-batch, if it has one.
        """
        values, sums = self.values, self.store.list_sums(variables)
        if batch is None:
            return values.copies(sums)
        of_batch, rest = self.store.list_sums(batch.variables), sums[len(batch.variables) :]
        gradients = list(map(values.dense, self._fit(batch.gradients, of_batch)))
        totals = values.plus_each(of_batch, gradients, batch.factor)
        return totals + values.copies(rest) if rest else totals

    def averages(self, totals, steps):
        """Return the gradients for an update: scaled sums, or zeros inside a window.

        `steps` has one for each total.
        """
        groups = []  # of equal steps and dtypes, which are neighbours
        for step, total in zip(steps, totals):
            if not (groups and groups[-1][0] is step and groups[-1][1] == total.dtype):
                groups.append((step, total.dtype, []))
            groups[-1][2].append(total)
        # Without a window, the totals are gradients, which belong to the caller.
        multiply = self.values.scale_copies if self.store.sums else self.values.scale_all
        scaled = [multiply(group, self._scale(step, dtype)) for step, dtype, group in groups]
        return list(itertools.chain(*scaled))

    def _scale(self, step, dtype):
        """Return the factor for sums of a dtype: a number if Python knows it."""
        if is_known(step.divisor) and is_known(step.switch):
            return scale(np, step, self.options, float)  # in full precision, for float64
        ops = self.values.ops_of(step.divisor)
        return scale(ops, step, self.options, lambda value: self.values.cast(value, dtype))

    def keep(self, step, totals, variables):
        """Write what remains in the accumulators: all inside a window, zeros after its end."""
        values, sums = self.values, self.store.list_sums(variables)
        if is_unconditional(step.switch) and not values.is_traced():
            values.zero_each(self.replicas, sums)
            return
        # Through each weight's own copy, so that a trace writes its sum after it: `remainder`.
        factors = {total.dtype: values.cast(1 - step.switch, total.dtype) for total in totals}
        holds = [factors[total.dtype] for total in totals]
        sum_of = dict(zip(map(id, variables), sums))

        def write(variable, written, total, hold):
            return sum_of[id(variable)].assign(values.remainder(total, hold, written))

        self.replicas.on_each(variables, write, totals, holds)
