"""The verdict on a window, variable by variable. No Keras here, and no training."""

import dataclasses
import math
from collections import namedtuple

import numpy as np

_TIMES = 10  # a window's distance may be this many times the control
_RANDOM = 1e-3  # a distance of two equal trainings above this isn't rounding
_LARGE = 100  # another order may differ by this many times as much as one unit, and be rounding
_ALONE = 0.1  # a control above this: the gradient is rounding alone, as one that is zero in theory

_DRAWS = (
    "The big batch differs from itself in the same order ({:.2g}), so the model draws random "
    "numbers{}, or keeps something in Python. That isn't wrong, but hides all else: compare a "
    "model without it."
)
_ROUNDS = (
    "Rounding is large beside this gradient: weights that differ by one unit in the last place "
    "move it as much. Compare with initial weights, or in float64: "
    'keras.backend.set_floatx("float64") before you make the model; on JAX, also '
    'jax.config.update("jax_enable_x64", True).'
)
_NOT_COMPARED = (
    "Not compared, because rounding moves them as much in the big batch (control: {:.2g}; their "
    "gradient may be zero in theory): {}."
)
_COVERS = "Compared: the gradients of one window of {} samples, {} of {} variables."
_IS_HALF = (
    "In half precision, smaller differences don't show. For those, make the model in float32: "
    'keras.config.set_dtype_policy("float32"), on tf_keras '
    'keras.mixed_precision.set_global_policy("float32").'
)

VariableDistance = namedtuple("VariableDistance", "name distance control")


@dataclasses.dataclass(frozen=True)
class Precision:
    """What a data type can tell.

    unit: the relative size of one unit in the last place.
    floor: a relative distance that is rounding in any case.
    limit: a distance above this isn't called equal, whatever the control.
    """

    unit: float
    floor: float
    limit: float
    is_half: bool = False


def precision_of(dtype):
    """Return the Precision of the least precise data type in a model, by its name."""
    if dtype == "float64":
        return Precision(2.0**-52, 1e-9, 1e-9)
    unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype)
    if unit is not None:
        return Precision(unit, _TIMES * unit / 2, max(1e-4, _TIMES * unit / 2), is_half=True)
    return Precision(2.0**-23, _TIMES * 2.0**-24, 1e-4)


@dataclasses.dataclass(frozen=True)
class Big:
    """The big batch's gradients, each a list of one array per variable.

    again: the same samples in the same order, trained once more.
    nudged: a list of such lists, with weights that differ by one unit in the last place.
    orders: the same of other orders of the samples, which long sums round otherwise.
    parts: the same of halves of the samples; a gradient that is far smaller than theirs is a
        difference of rounded numbers.
    """

    gradients: list
    again: list
    nudged: list
    orders: list
    parts: list = ()

    def controls(self, precision):
        """Return for each variable how far rounding moves its gradient."""
        found = self._most([self.again, *self.nudged])
        most = [
            max(_LARGE * control, precision.limit * size)
            for control, size in zip(found, _norms(self.gradients))
        ]
        for order in self.orders:
            moved = _norms(order, self.gradients)  # far more if the loss depends on the order
            moved = [distance if distance <= m else 0.0 for distance, m in zip(moved, most)]
            found = list(map(max, found, moved))
        for part in self.parts:
            rounded = [size * precision.floor / _TIMES for size in _norms(part)]
            found = list(map(max, found, rounded))
        return found

    def _most(self, lists):
        return list(map(max, zip(*(_norms(each, self.gradients) for each in lists))))

    def draws(self, precision):
        """Return how far the gradient differs in the same order, 0 if no more than by rounding."""
        again, sizes = _norms(self.again, self.gradients), _norms(self.gradients)
        whole = _ratio(_norm(again), _norm(sizes))
        found = [
            _ratio(a, size)
            for a, n, size in zip(again, self._most(self.nudged), sizes)
            if a > _TIMES * n and a > precision.floor * size
        ]
        return max([*found, whole if whole > max(_RANDOM, precision.floor) else 0.0])


class Judgement:
    """The verdict on one window beside its big batch, with these gradients in the window's order.

    verdict: "equal", "differs" or "undecided". by_variable: VariableDistances, the worst first.
    draws: how far the big batch differs from itself by random draws. alone: the VariableDistances
    of gradients that are rounding alone.
    """

    def __init__(self, names, window, gradients, big, precision):
        sizes, distances = _norms(gradients), _norms(window, gradients)
        ranked = []
        for name, size, distance, control in zip(names, sizes, distances, big.controls(precision)):
            found = VariableDistance(name, _ratio(distance, size), _ratio(control, size))
            if distance > max(_TIMES * control, precision.floor * size):
                rank = 0
            elif found.control < _ALONE:
                rank = 1
            else:
                rank = 2
            ranked.append((rank, found))
        ranked.sort(key=lambda each: (each[0], -each[1].distance))
        self.by_variable = [found for _, found in ranked]
        self.alone = [found for rank, found in ranked if rank == 2]
        self.draws = big.draws(precision)
        worst_rank, worst = ranked[0]
        if self.draws:
            self.verdict = "undecided"
        elif worst_rank == 0:
            self.verdict = "differs"
        elif worst_rank == 2 or worst.distance > precision.limit:
            self.verdict = "undecided"
        else:
            self.verdict = "equal"

    def advise(self, precision, random):
        """Return the next step, if the verdict doesn't stand. random: names of layers."""
        if self.draws:
            return _DRAWS.format(self.draws, f" in {list_some(random)}" if random else "")
        if self.verdict == "undecided":
            return _ROUNDS
        return _IS_HALF if precision.is_half else ""

    def list_notes(self, samples):
        """Return what the verdict covers."""
        count = len(self.by_variable)
        notes = [_COVERS.format(samples, count - len(self.alone), count)]
        if self.alone and len(self.alone) < count:
            names = list_some([found.name for found in self.alone])
            notes.append(_NOT_COMPARED.format(max(f.control for f in self.alone), names))
        return notes


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare_with_big_batch`. Print it.

    window: the distance between a variable's gradients by the window, a, and by the big batch, b:
        ||a - b|| / ||b||. Of the variable that differs most.
    control: how far rounding moves this variable's gradient in the big batch: the same, with
        samples in another order, or weights that differ by one unit in the last place.
    by_variable: (name, distance, control) for each variable, the worst first.
    verdict: "equal", "differs" or "undecided".
    warnings: what `fit` warned of in the window, but not with the big batch.
    notes: what the verdict covers, and what was changed for the comparison.
    advice: the next step, "" if there is none.
    """

    window: float
    control: float
    by_variable: list
    verdict: str
    warnings: list
    notes: list
    advice: str

    def __str__(self):
        found = f"{self.verdict}: {self.window:.2g} (rounding: {self.control:.2g})"
        if self.verdict != "equal":
            found = f"{found}, most in {self.by_variable[0].name}"
        return "\n".join([f"{found}.", *self.warnings, *filter(None, [self.advice]), *self.notes])


def list_some(names):
    names = list(dict.fromkeys(names))
    more = [f"{len(names) - 5} more"] if len(names) > 6 else []
    return ", ".join(names[:5] + more if more else names)


def are_finite(gradients):
    return all(np.isfinite(gradient).all() for gradient in gradients)


def _norm(array):
    return math.sqrt(float(np.sum(np.abs(array).astype("float64") ** 2)))


def _norms(gradients, others=None):
    if others is None:
        return list(map(_norm, gradients))
    return [_norm(a - b) for a, b in zip(gradients, others)]


def _ratio(distance, size):
    return distance / size if size else math.inf if distance else 0.0
