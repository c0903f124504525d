"""The verdict on a window, variable by variable. No Keras here, and no training."""

import dataclasses
import enum
import math
from collections import namedtuple
from typing import NamedTuple, Optional, Tuple

import numpy as np

_TIMES = 10  # a window's distance may be this many times the control
_RANDOM = 1e-3  # a distance of two equal trainings above this isn't rounding
_LARGE = 100  # rounding in another order may be this many times the distance of a nudged batch
_ONLY_ROUNDING = 0.1  # a control above this: the gradient may be zero in theory
_MAGNITUDE = 10  # elements whose gradients are within a factor of 2 ** 10 are judged together

_DRAWS = (
    "The big batch differs from itself in the same order ({:.2g}), so the model draws random "
    "numbers{}, or keeps something in Python. That isn't wrong, but hides all else: compare a "
    "model without it."
)
_ROUNDS = (
    "Rounding is large beside this gradient: weights or a loss that differ by one unit in the last "
    "place move it as much. Compare with initial weights, or on TensorFlow in float64: "
    'keras.backend.set_floatx("float64") before you make the model.'
)
_NOT_COMPARED = (
    "Not compared, because rounding moves them as much in the big batch (control: {:.2g}; their "
    "gradient may be zero in theory): {}."
)
_OF_SMALL = (
    "In {}, this is the distance of {} in {} elements, whose gradients are up to {:.1g} beside the "
    "largest, {:.1g}. Optimizers such as Adam scale each element by itself."
)
_COVERS = "Compared: the gradients of one window of {} samples, {} of {} variables."
_IS_HALF = (
    "In half precision, smaller differences don't show. For those, make the model in float32: "
    'keras.config.set_dtype_policy("float32"), on tf_keras '
    'keras.mixed_precision.set_global_policy("float32").'
)

VariableDistance = namedtuple("VariableDistance", "name distance control")


class Rank(enum.IntEnum):
    """The verdict on one variable, the worst first."""

    DIFFERS, EQUAL, ONLY_ROUNDING = range(3)


class Ranked(NamedTuple):
    """A variable with its rank.

    small: (mask, gradient) if only small elements differ, where the mask is True for these.
    """

    rank: Rank
    variable: VariableDistance
    small: Optional[Tuple[np.ndarray, np.ndarray]] = None


@dataclasses.dataclass(frozen=True)
class Precision:
    """How precisely a data type can tell gradients apart.

    unit: the relative size of one unit in the last place.
    floor: a relative distance, rounding in any case.
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
class BigBatch:
    """The big batch's gradients, with trainings that show how far rounding moves them.

    The first two are lists of an array per variable, the others are lists of such lists.

    gradients: in the window's order of samples.
    again: in the same order, trained once more.
    nudged: with weights that differ by one unit in the last place.
    reordered: in other orders of the samples, because long sums round differently in each.
    parts: for parts of the samples. A gradient that is far smaller than theirs is a difference of
        rounded numbers.
    """

    gradients: list
    again: list
    nudged: list
    reordered: list
    parts: list = ()

    def controls(self, precision):
        """Return for each variable how far rounding moves its gradient."""
        controls = self._largest_distances([self.again, *self.nudged])
        sizes = map(max, zip(*map(_norms, [self.gradients, *self.parts])))
        limits = [max(_LARGE * c, precision.limit * size) for c, size in zip(controls, sizes)]
        for gradients in self.reordered:
            distances = _norms(gradients, self.gradients)
            # Above the limit, the loss depends on the order.
            distances = [d if d <= limit else 0.0 for d, limit in zip(distances, limits)]
            controls = list(map(max, controls, distances))
        for gradients in self.parts:
            rounded = [size * precision.floor / _TIMES for size in _norms(gradients)]
            controls = list(map(max, controls, rounded))
        return controls

    def _largest_distances(self, runs):
        """Return for each variable its largest distance in these runs."""
        distances = [_norms(gradients, self.gradients) for gradients in runs]
        return list(map(max, zip(*distances)))

    def find_magnitudes(self, index):
        """Return a mask for each order of magnitude in a variable with several, else nothing.

        An element counts by its largest gradient, because the whole batch's may be a difference of
        large ones.
        """
        arrays = [gradients[index] for gradients in (self.gradients, *self.parts)]
        sizes = np.max([np.abs(array).astype("float64") for array in arrays], axis=0)
        exponents = np.frexp(np.where(sizes > 0, sizes, np.max(sizes)))[1] // _MAGNITUDE
        masks = [exponents == e for e in range(exponents.min(), exponents.max() + 1)]
        return list(filter(np.any, masks)) if len(masks) > 1 else []

    def select(self, index, masks):
        """Return the BigBatch of one variable's elements in these masks, each as a variable."""

        def select(gradients):
            return _select(gradients, index, masks)

        return BigBatch(
            select(self.gradients),
            select(self.again),
            list(map(select, self.nudged)),
            list(map(select, self.reordered)),
            list(map(select, self.parts)),
        )

    def draws(self, precision):
        """Return how far the gradient differs in the same order, 0 if no more than by rounding."""
        distances, sizes = _norms(self.again, self.gradients), _norms(self.gradients)
        nudged = self._largest_distances(self.nudged)
        overall = _ratio(_norm(distances), _norm(sizes))
        ratios = [
            _ratio(distance, size)
            for distance, rounding, size in zip(distances, nudged, sizes)
            if distance > _TIMES * rounding and distance > precision.floor * size
        ]
        return max([*ratios, overall if overall > max(_RANDOM, precision.floor) else 0.0])


class Judgement:
    """The verdict on a window beside its big batch.

    window, gradients: the window's gradients, and the big batch's in the same order of samples.
    verdict: "equal", "differs" or "undecided".
    by_variable: VariableDistances, the worst first.
    only_rounding: those of gradients that are nothing but rounding.
    draws: how far the big batch differs from itself by random draws.

    A variable whose norm is equal may still differ in its small elements, so each order of
    magnitude is also judged as a variable.
    """

    def __init__(self, names, window, gradients, big, precision):
        ranked = []
        for index, whole in enumerate(_rank(names, window, gradients, big, precision)):
            small = None
            if whole.rank == Rank.EQUAL:
                small = _find_small(index, whole.variable.name, window, gradients, big, precision)
            ranked.append(small or whole)
        ranked.sort(key=lambda row: (row.rank, -row.variable.distance))
        self.by_variable = [row.variable for row in ranked]
        self.only_rounding = [row.variable for row in ranked if row.rank == Rank.ONLY_ROUNDING]
        self.draws = big.draws(precision)
        worst_rank, worst, self._small = ranked[0]
        if self.draws:
            self.verdict = "undecided"
        elif worst_rank == Rank.DIFFERS:
            self.verdict = "differs"
        elif worst_rank == Rank.ONLY_ROUNDING or worst.distance > precision.limit:
            self.verdict = "undecided"
        else:
            self.verdict = "equal"

    def advise(self, precision, random_layers):
        """Return the next step if the verdict needs one, else "".

        random_layers: the names of layers that draw random numbers.
        """
        if self.draws:
            layers = f" in {list_some(random_layers)}" if random_layers else ""
            return _DRAWS.format(self.draws, layers)
        if self.verdict == "undecided":
            return _ROUNDS
        return _IS_HALF if precision.is_half else ""

    def list_notes(self, samples):
        """Return what the verdict covers."""
        count = len(self.by_variable)
        notes = [_COVERS.format(samples, count - len(self.only_rounding), count)]
        if self._small is not None:
            mask, gradient = self._small
            largest = np.abs(gradient[mask]).max(), np.abs(gradient).max()
            name = self.by_variable[0].name
            notes.append(_OF_SMALL.format(name, mask.sum(), mask.size, *largest))
        if self.only_rounding and len(self.only_rounding) < count:
            names = list_some([variable.name for variable in self.only_rounding])
            control = max(variable.control for variable in self.only_rounding)
            notes.append(_NOT_COMPARED.format(control, names))
        return notes


def _rank(names, window, gradients, big, precision):
    """Yield each variable as Ranked."""
    sizes, distances = _norms(gradients), _norms(window, gradients)
    for name, size, distance, control in zip(names, sizes, distances, big.controls(precision)):
        variable = VariableDistance(name, _ratio(distance, size), _ratio(control, size))
        if distance > max(_TIMES * control, precision.floor * size):
            yield Ranked(Rank.DIFFERS, variable)
        elif variable.control < _ONLY_ROUNDING:
            yield Ranked(Rank.EQUAL, variable)
        else:
            yield Ranked(Rank.ONLY_ROUNDING, variable)


def _find_small(index, name, window, gradients, big, precision):
    """Return a variable's order of magnitude that differs most, as Ranked. None if none differs."""
    masks = big.find_magnitudes(index)
    names, big = [name] * len(masks), big.select(index, masks)
    elements = _select(window, index, masks), _select(gradients, index, masks)
    ranked = _rank(names, *elements, big, precision)
    differing = [
        row._replace(small=(mask, gradients[index]))
        for row, mask in zip(ranked, masks)
        if row.rank == Rank.DIFFERS
    ]
    return max(differing, key=lambda row: row.variable.distance, default=None)


def _select(gradients, index, masks):
    """Return one variable's gradient elements for each mask."""
    return [gradients[index][mask] for mask in masks]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare_with_big_batch`. Print it.

    window: the distance ||a - b|| / ||b|| between the window's gradient a and the big batch's
        gradient b of the variable that differs most. If a variable only differs in elements of one
        order of magnitude, the distance is that of these elements.
    control: how far rounding moves this gradient in the big batch: the distance with samples in
        another order, or weights that differ by one unit in the last place.
    by_variable: (name, distance, control) for each variable, the worst first.
    verdict: "equal", "differs" or "undecided".
    warnings: the warnings that `fit` gave for the window, but not for the big batch.
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
        result = f"{self.verdict}: {self.window:.2g} (rounding: {self.control:.2g})"
        if self.verdict != "equal":
            result = f"{result}, most in {self.by_variable[0].name}"
        advice = [self.advice] if self.advice else []
        return "\n".join([f"{result}.", *self.warnings, *advice, *self.notes])


def list_some(names):
    """Return the names as text, with a number in place of those after the fifth."""
    names = list(dict.fromkeys(names))
    more = [f"{len(names) - 5} more"] if len(names) > 6 else []
    return ", ".join(names[:5] + more if more else names)


def are_finite(gradients):
    return all(np.isfinite(gradient).all() for gradient in gradients)


def _norm(array):
    return math.sqrt(float(np.sum(np.abs(array).astype("float64") ** 2)))


def _norms(gradients, subtracted=None):
    """Return each variable's norm, or distance from the gradients that are subtracted."""
    if subtracted is None:
        return list(map(_norm, gradients))
    return [_norm(a - b) for a, b in zip(gradients, subtracted)]


def _ratio(distance, size):
    return distance / size if size else math.inf if distance else 0.0
