"""Problems with a model's loss: why results may differ from the big batch, and what to write."""

from fractions import Fraction

from keras_accum.host import warn_once
from keras_accum.terms import repeated, table
from keras_accum.terms.table import Way


class Problems:
    """What a model's train steps have shown, for one warning per optimizer.

    A step may be traced, so it notes problems, and `warn` comes after it.
    """

    def __init__(self, host, model, optimizers, has_own_code):
        """`has_own_code`: the model has its own `compute_loss` or `train_step`."""
        self._host, self._model, self._optimizers = host, model, optimizers
        self._has_own_code = has_own_code
        self._ratios = None  # of several divisors, in the traces and steps so far
        self._notes = []  # (optimizer, text)
        self._told = set()  # optimizers; a text has shapes, so a later batch may have another

    def note(self, decision):
        """Note a decision's problem, or raise it as a ValueError if an optimizer is strict."""
        problem, strict = decision.problem, decision.strict_problem
        if decision.sizes and self._are_unequal(decision.sizes):
            problem = strict = decision.if_unequal
        start = table.BY_SAMPLES if decision.way is Way.BY_SAMPLES else ""
        for optimizer in self._optimizers:
            options = optimizer._accumulation.options
            if not options.weighs:
                continue
            if options.is_strict and strict:
                raise ValueError(table.STRICT + strict)
            if problem and not repeated.are_scaled(self._model, optimizer, self._host):
                self._notes.append((optimizer, problem + table.UNTIL_THEN.format(start)))

    def _are_unequal(self, sizes):
        """Return True if numbers have another ratio than in earlier micro-batches."""
        ratios = [Fraction(size, sizes[0] or 1) for size in sizes]
        before, self._ratios = self._ratios, self._ratios or ratios
        return before not in (None, ratios)

    def check_sums(self):
        """Note terms that `reduction="sum"` would count too often."""
        model, host, has_own_code = self._model, self._host, self._has_own_code
        for optimizer in self._optimizers:
            if optimizer.reduction == "sum":
                adds = len(host.list_added_losses(model)) > 0
                text = repeated.describe(model, optimizer, host, has_own_code, adds)
                if text:
                    self._notes.append((optimizer, text))

    def warn(self):
        """Give the warnings of a step, outside of its trace."""
        notes, self._notes = self._notes, []
        for optimizer, text in notes:
            if optimizer not in self._told:
                self._told.add(optimizer)
                warn_once(optimizer, text)
