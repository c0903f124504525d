"""Reads a model's loss in a train step: its terms, samples and divisor."""

from keras_accum.host import find_own_methods
from keras_accum.terms import repeated, table
from keras_accum.terms.term import count_rows, read_shape


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

    def describe(self, terms, inputs=None, own=None):
        """Return the Loss of these terms.

        inputs: the first array of x, over whose rows layers take means; None if unknown.
        own: what put the loss together, if not `own_loss`.
        """
        host, model = self._host, self._model
        own = self.own_loss if own is None else own
        terms = [term for term in terms if term.is_in_loss]
        added = [read_shape(loss) != () for loss in host.list_added_losses(model)]
        has_sum = any(added) or any(term.loss.reduction == "sum" for term in terms)
        return table.Loss(
            terms,
            count_rows(inputs),
            adds=bool(added),
            adds_sums=any(added),
            adds_means=not all(added),
            is_penalized=has_sum and host.has_penalties(model),
            own=own,
            remedy=self._make_remedy() if has_sum else "",
        )

    def _make_remedy(self):
        if self._optimizer is None:
            return ""
        return repeated.make_remedy(self._model, self._optimizer, self._host)

    def find_rows(self, x=None, y=None, y_pred=None, sample_weight=None, *others):
        """Return the first array of a batch that has a row for each sample, or None.

        Targets come first: in a batch of graphs, x has a row for each node.
        """
        for structure in (y, y_pred, sample_weight, x, others):
            for array in self._host.flatten(structure):
                if read_shape(array):
                    return array
        return None

    def find_rows_of_step(self, data):
        """Return the same for the data that a train step gets, as far as Keras tells."""
        data = tuple(data) if isinstance(data, (tuple, list)) else (data,)
        x, y, sample_weight, *others = data + (None,) * (3 - len(data))
        return self.find_rows(x, y, None, sample_weight, *others)

    def count_samples(self, rows):
        """Return the number of samples, None if there are no rows."""
        if rows is None:
            return None
        ops, known = self._host.ops, rows.shape[0]
        return self.not_zero(ops.cast(ops.shape(rows)[0], self._dtype) if known is None else known)

    def read_divisor(self, term):
        """Return what a term is divided by, computed once."""
        if term.number is None:
            term.number = self.not_zero(term.count(self._dtype))
        return term.number

    def not_zero(self, divisor):
        """Return a divisor, the least weight in place of 0."""
        if isinstance(divisor, int):
            return divisor or self._host.least_weight
        ops = self._host.ops
        return ops.where(ops.not_equal(divisor, 0), divisor, self._host.least_weight)
