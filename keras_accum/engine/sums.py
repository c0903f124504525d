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
        summed = self.store.are_summed(batch.variables)
        if not all(summed):
            self._keep_largest(*_choose([not one for one in summed], totals, gradients))
            totals, gradients = _choose(summed, totals, gradients)
        return values.add_each(self.replicas, totals, gradients, batch.factor)  # the last write

    def _fit(self, gradients, totals):
        """Return gradients in the dtypes and shapes of their sums, or raise an error."""
        return self.values.shape_each(self.values.cast_each(gradients, totals), totals)

    def _keep_largest(self, totals, gradients):
        """Keep the maximum, as Keras's own accumulation does for the scales of float8."""
        values = self.values

        def write(total, target, gradient):
            return target.assign(values.ops.maximum(values.value(target), gradient))

        self.replicas.on_each(totals, write, gradients)

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
        for index, is_summed in enumerate(self.store.are_summed(batch.variables)):
            if not is_summed:
                old = values.value(of_batch[index])
                totals[index] = values.ops.maximum(old, gradients[index])
        return totals + values.copies(rest) if rest else totals

    def averages(self, totals, variables, steps):
        """Return the gradients for an update: scaled sums, or zeros inside a window.

        `steps` has one for each variable.
        """
        averages, groups = list(totals), []  # of equal steps and dtypes, which are neighbours
        for index, is_summed in enumerate(self.store.are_summed(variables)):
            if is_summed:
                step, dtype = steps[index], totals[index].dtype
                if not (groups and groups[-1][0] is step and groups[-1][1] == dtype):
                    groups.append((step, dtype, []))
                groups[-1][2].append(index)
        # Without a window, the totals are gradients, which belong to the caller.
        multiply = self.values.scale_copies if self.store.sums else self.values.scale_all
        for step, dtype, indices in groups:
            scaled = multiply([totals[index] for index in indices], self._scale(step, dtype))
            for index, average in zip(indices, scaled):
                averages[index] = average
        return averages

    def _scale(self, step, dtype):
        """Return the factor for sums of a dtype: a number if Python knows it."""
        if is_known(step.divisor) and is_known(step.switch):
            return scale(np, step, self.options, lambda value: value)
        ops = self.values.ops_of(step.divisor)
        return scale(ops, step, self.options, lambda value: self.values.cast(value, dtype))

    def keep(self, step, totals, variables):
        """Write what remains in the accumulators: all inside a window, zeros after its end."""
        values, sums = self.values, self.store.list_sums(variables)
        if is_unconditional(step.switch) and not values.is_traced():
            values.zero_each(self.replicas, sums)
            return
        factors = {total.dtype: values.cast(1 - step.switch, total.dtype) for total in totals}
        holds = [factors[total.dtype] for total in totals]
        by_variable = dict(zip(map(id, variables), sums))

        def write(variable, target, total, hold):
            return by_variable[id(variable)].assign(values.remainder(total, hold, target))

        self.replicas.on_each(variables, write, totals, holds)


def _choose(chosen, *lists):
    """Return from each list the items that are chosen."""
    return [list(itertools.compress(items, chosen)) for items in lists]
