"""Reads a model's loss in a train step: its terms, samples and divisor."""

from keras_accum.host import find_own_methods
from keras_accum.terms import repeated, table
from keras_accum.terms.tap import find_own_losses
from keras_accum.terms.term import find_divisor, list_counting, read_shape


class LossReader:
    """Reads what a model's loss is divided by, from the calls that a Tap has seen.

    optimizer: the first accumulating one, whose length is in messages; None without any.
    dtype: that of numbers that Python doesn't know.
    own_loss: the model's own code that puts the loss together, in words, or "".
    has_own_step: True if the model has its own `train_step`.
    """

    def __init__(self, host, model, optimizer, dtype):
        self._host, self._model, self._optimizer, self._dtype = host, model, optimizer, dtype
        own = find_own_methods(model, host.keras.Model, "compute_loss", "train_step")
        self.own_loss = table.OWN_LOSS if "compute_loss" in own else ""
        self.has_own_step = "train_step" in own

    def describe(self, terms, samples, own=None):
        """Return the Loss of these terms.

        samples: their number, None if unknown.
        own: what put the loss together, if not `own_loss`.
        """
        host, model, terms = self._host, self._model, list_counting(terms)
        own = self.own_loss if own is None else own
        kept = find_own_losses(host, model) if own and not terms else ()
        divisors = [(loss.name, find_divisor(loss)) for loss in kept]
        has_sum = any(term.loss.reduction == "sum" for term in terms)
        return table.Loss(
            terms,
            samples,
            adds=host.added_losses(model) > 0,
            is_penalized=has_sum and host.has_penalties(model),
            own=own,
            kept=[(name, divisor) for name, divisor in divisors if divisor is not None],
            remedy=self._make_remedy() if has_sum else "",
        )

    def _make_remedy(self):
        if self._optimizer is None:
            return ""
        return repeated.make_remedy(self._model, self._optimizer, self._host)

    def find_rows(self, *nested):
        """Return the first array that has a row for each sample, or None."""
        arrays = [array for structure in nested for array in self._host.flatten(structure)]
        return next((array for array in arrays if read_shape(array)), None)

    def count_samples(self, rows):
        """Return the number of samples, None if there are no rows."""
        if rows is None:
            return None
        ops, known = self._host.ops, rows.shape[0]
        return self.not_zero(ops.cast(ops.shape(rows)[0], self._dtype) if known is None else known)

    def read_divisor(self, term):
        """Return what a term is divided by, computed once."""
        if term.counted is None:
            term.counted = self.not_zero(term.count(self._dtype))
        return term.counted

    def not_zero(self, divisor):
        """Return a divisor, the least weight in place of 0."""
        if isinstance(divisor, int):
            return divisor or self._host.least_weight
        ops = self._host.ops
        return ops.where(ops.not_equal(divisor, 0), divisor, self._host.least_weight)
