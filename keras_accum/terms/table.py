"""The table: what a window does with a loss of these terms, and what `fit` says about it."""

import enum
from typing import Any, NamedTuple, Sequence

from keras_accum.terms.term import Divisor

BY_FUNCTION = (
    "give `fit` `callbacks=[MicroBatchWeights(weight)]`, where `weight` is a function of (x, y, "
    "y_pred, sample_weight) that returns this number"
)
BY_CALL = "call `optimizer.weigh(n)` with this number in the train step, before the optimizer"
OWN_LOSS, OWN_STEP = "the model's own `compute_loss`", "the loss in the model's own `train_step`"
_IN_SLICES = (
    "On Keras 3, `MicroBatches(size)` with Keras's own optimizer and whole batches is exact."
)
_COMPARES = "The loss {!r} {}. " + _IN_SLICES
_SUM_BESIDE = (
    "The loss {!r} is a sum beside terms that aren't, and a micro-batch has one weight. {}"
)
_SEVERAL = (
    "Several losses are divided by different numbers, such as of samples and of tokens, or by "
    "different masks, and a micro-batch has one weight. " + _IN_SLICES + " Otherwise, let all "
    "losses be means over samples, with zeros for missing labels in place of dropping them. If "
    f"the numbers are equal, {BY_FUNCTION}. Received: {{}}"
)
_ADDED = (
    "Layers add losses, such as activity penalties, which are means over samples, and the loss "
    "{!r} {}. " + _IN_SLICES + " Otherwise, leave these losses out."
)
_ADDED_SUM = (
    "A loss given to `add_loss` has several values, and Keras takes their sum, beside terms that "
    "aren't sums. Give `add_loss` their mean."
)
_UNREADABLE = (
    "`fit` can't read {}, and takes it for a mean over samples{}. If it is divided by another "
    "number, {}.{}"
)
_BESIDE = ", but the loss {!r} {}"
_IF_COMPARES = " If it is a sum, or compares samples: "
_OF_USER = (
    "`fit` can't read what the loss {!r} is divided by: it {}. If it is a mean over samples, "
    f"return a value for each. If it is divided by another number, {BY_FUNCTION}. If it compares "
    "samples: " + _IN_SLICES
)
_OF_BAG = (
    "`fit` can't read what the loss {!r} is divided by: it {}, and the model returns one row for "
    "all rows of y. If each batch is a bag of instances with one label, construct the optimizer "
    "with reduction='mean', so that each batch counts as one."
)
_STRICT = f"`fit` can't read what {{}} is divided by: {BY_FUNCTION}. Received: {{}}"
UNTIL_THEN = " Until then, {}your results may differ from the big batch."
BY_SAMPLES = "`fit` weighs each micro-batch by its number of samples, and "
STRICT = "reduction='weighted' must know what the whole loss is divided by. "


class Way(enum.Enum):
    """How the micro-batches in a window become one."""

    BY_DIVISOR = "weighed by what their loss is divided by"
    AS_SUM = "added up"
    BY_SAMPLES = "weighed by their number of samples"


class Decision(NamedTuple):
    """What a window does with a loss.

    problem: why results may differ from the big batch, and what to write; None if they don't.
    strict_problem: the same for `reduction="weighted"`.
    sizes: numbers whose ratios must be the same in all micro-batches; empty if nothing must.
    if_unequal: the problem if they aren't.
    """

    way: Way
    problem: Any = None
    strict_problem: Any = None
    sizes: Sequence = ()
    if_unequal: Any = None


class Loss(NamedTuple):
    """A model's loss, as one call of `compute_loss` shows it.

    terms: a Term for each call of a compiled loss.
    inputs: the number of rows of x, over which layers take means; None if a graph doesn't know it.
    adds: True if layers add losses, such as activity penalties.
    adds_sums, adds_means: True if some of them have several values, of which Keras takes the sum,
        or one value.
    is_penalized: True if weights that train have penalties.
    own: the model's own code that puts the loss together, in words, or "".
    remedy: the line to write for a sum beside means.
    """

    terms: Sequence
    inputs: Any = None
    adds: bool = False
    adds_sums: bool = False
    adds_means: bool = False
    is_penalized: bool = False
    own: str = ""
    remedy: str = ""

    def decide(self):
        """Return the Decision for this loss."""
        divisors = [term.divisor for term in self.terms]
        problem = self._find_problem(divisors)
        if problem is not None:
            return Decision(Way.BY_SAMPLES, problem, problem)
        if self.adds_sums or {*divisors} == {Divisor.NOTHING}:
            return Decision(Way.AS_SUM)
        if not divisors or Divisor.UNKNOWN in divisors:  # by Keras's rules, means over samples
            return Decision(Way.BY_SAMPLES, strict_problem=self._explain_strict(divisors))
        sizes = self._list_sizes()
        problem = self._explain_several(divisors) if sizes else None
        return Decision(Way.BY_DIVISOR, sizes=sizes, if_unequal=problem)

    def _find_problem(self, divisors):
        """Return why no weight makes windows exact, and what to write; None if one does."""
        kinds = {*divisors}
        if Divisor.COMPARES in kinds:
            return _COMPARES.format(*self._find(divisors, Divisor.COMPARES))
        if self.adds_sums:
            is_alone = kinds <= {Divisor.NOTHING} and not (self.own or self.adds_means)
            return None if is_alone and not self.is_penalized else _ADDED_SUM
        if self.own:
            return self._explain_own(divisors)
        for term, divisor in zip(self.terms, divisors):
            if divisor is Divisor.UNKNOWN and term.obstacle:
                return (_OF_BAG if term.is_of_bag else _OF_USER).format(term.name, term.obstacle)
        if Divisor.NOTHING in kinds:
            if kinds == {Divisor.NOTHING} and not (self.adds or self.is_penalized):
                return None
            return _SUM_BESIDE.format(self._find(divisors, Divisor.NOTHING)[0], self.remedy)
        if Divisor.UNKNOWN in kinds:
            are_means = kinds <= {Divisor.UNKNOWN, Divisor.SAMPLES}
            return None if are_means else self._explain_several(divisors)
        if self._is_one_term or self._have_ratios():
            return None
        have_one = len({term.key for term in self.terms}) == 1 and not self.adds
        return None if have_one else self._explain_several(divisors)

    @property
    def _is_one_term(self):
        return len(self.terms) + self.adds == 1

    def _have_ratios(self):
        """True if the shapes of values tell the divisors' ratios."""
        return all(isinstance(term.key, int) for term in self.terms)

    def _explain_own(self, divisors):
        """Return the problem with a loss that the model's own code puts together."""
        known = []
        for term, divisor in zip(self.terms, divisors):
            if divisor is Divisor.UNKNOWN and term.obstacle:
                known.append((term.name, term.obstacle))
            elif divisor not in (Divisor.SAMPLES, Divisor.UNKNOWN):
                known.append((term.name, divisor.value))
        beside = _BESIDE.format(*known[0]) if known else ""
        if self.own == OWN_STEP:
            return _UNREADABLE.format(self.own, beside, BY_CALL, "")
        return _UNREADABLE.format(self.own, beside, BY_FUNCTION, _IF_COMPARES + _IN_SLICES)

    def _explain_strict(self, divisors):
        """Return why `reduction="weighted"` can't know the divisor."""
        unknown = [term.name for term, d in zip(self.terms, divisors) if d is Divisor.UNKNOWN]
        what = f"the loss {unknown[0]!r}" if unknown else "the model's loss"
        received = ", ".join(map(_describe, self.terms)) or "no compiled loss"
        return _STRICT.format(what, received)

    def _find(self, divisors, divisor):
        """Return the name of the first term with this divisor, and the words for the divisor."""
        return self.terms[divisors.index(divisor)].name, divisor.value

    def _list_sizes(self):
        """Return the numbers of values in each term, and of rows if layers add losses.

        If a graph doesn't know one of them, the numbers are those per sample. Empty for a single
        divisor.
        """
        if self._is_one_term or not self._have_ratios():
            return ()
        rows = [self.inputs] * self.adds
        sizes = [*(term.size for term in self.terms), *rows]
        keys = (term.key for term in self.terms)
        return [*keys, *[1] * len(rows)] if None in sizes else sizes

    def _explain_several(self, divisors):
        """Return the problem with several divisors."""
        if self.adds:
            return _ADDED.format(self.terms[-1].name, divisors[-1].value)
        return _SEVERAL.format(", ".join(map(_describe, self.terms)))


def _describe(term):
    return f"{term.name!r} of values {term.shape}"
