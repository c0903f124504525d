"""The verdict on a window, variable by variable. No Keras here, and no training."""

import dataclasses
import math
from collections import namedtuple

import numpy as np

_TIMES = 10  # a window's distance may be this many times the control
_RANDOM = 1e-3  # a distance of two equal trainings above this isn't rounding
_LARGE = 100  # another order may differ by this many times as much as one unit, and be rounding
_SAME = 1e-5  # norms closer than this are equal
_ALONE = 0.1  # a control above this: the gradient is rounding alone, zero in theory
_ORDER = 10  # elements whose gradients are within a factor of 2 ** 10 are judged together

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


@dataclasses.dataclass(frozen=True)
class Precision:
    """What a data type can tell.

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
class Big:
    """The big batch's gradients, each a list of one array per variable.

    again: the same samples in the same order, trained once more.
    nudged: a list of such lists, with weights that differ by one unit in the last place.
    orders: the same of other orders of the samples, which long sums round otherwise.
    parts: the same of parts of the samples; a gradient that is far smaller than theirs is a
        difference of rounded numbers.
    scaled: the same as gradients, with a multiplied loss and divided gradients. Divisors are
        rounded otherwise, as in batches of other sizes.
    """

    gradients: list
    again: list
    nudged: list
    orders: list
    parts: list = ()
    scaled: list = ()

    def controls(self, precision):
        """Return for each variable how far rounding moves its gradient."""
        found = self._most([self.again, *self.nudged, *self.scaled])
        sizes = map(max, zip(*map(_norms, [self.gradients, *self.parts])))
        most = [max(_LARGE * each, precision.limit * size) for each, size in zip(found, sizes)]
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

    def find_orders(self, index):
        """Return a mask for each order of magnitude in a variable with several, else nothing.

        An element counts by its largest gradient, because the whole batch's may be a difference of
        large ones.
        """
        lists = self.gradients, *self.parts
        sizes = np.max([np.abs(each[index]).astype("float64") for each in lists], axis=0)
        orders = np.frexp(np.where(sizes > 0, sizes, np.max(sizes)))[1] // _ORDER
        masks = [orders == order for order in range(orders.min(), orders.max() + 1)]
        return list(filter(np.any, masks)) if len(masks) > 1 else []

    def cut(self, index, masks):
        """Return the same of the elements in these masks, as if each were a variable."""

        def cut(gradients):
            return _cut(gradients, index, masks)

        several = self.nudged, self.orders, self.parts, self.scaled
        return Big(cut(self.gradients), cut(self.again), *(list(map(cut, s)) for s in several))

    def find_common_norm(self):
        """Return the norm of all gradients together, if it is the same in each batch, else None.

        Gradients clipped before the optimizer got them have one norm.
        """
        found = [norm(np.array(_norms(each))) for each in (self.gradients, *self.parts)]
        differ = [norm(np.array(_norms(each, self.gradients))) for each in self.parts]
        is_common = max(found) - min(found) < _SAME * max(found)
        return found[0] if is_common and differ and min(differ) > _RANDOM * found[0] else None

    def draws(self, precision):
        """Return how far the gradient differs in the same order, 0 if no more than by rounding."""
        again, sizes = _norms(self.again, self.gradients), _norms(self.gradients)
        whole = _ratio(norm(again), norm(sizes))
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

    A variable with an equal norm may still differ in its small elements, so each order of
    magnitude is judged as a variable, too.
    """

    def __init__(self, names, window, gradients, big, precision):
        ranked = []
        for index, each in enumerate(_rank(names, window, gradients, big, precision)):
            small = _find_small(index, each, window, gradients, big, precision)
            ranked.append(small or (*each, None))
        ranked.sort(key=lambda each: (each[0], -each[1].distance))
        self.by_variable = [found for _, found, _ in ranked]
        self.alone = [found for rank, found, _ in ranked if rank == 2]
        self.draws = big.draws(precision)
        worst_rank, worst, self._small = ranked[0]
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
        if self._small is not None:
            mask, gradient = self._small
            most = np.abs(gradient[mask]).max(), np.abs(gradient).max()
            name = self.by_variable[0].name
            notes.append(_OF_SMALL.format(name, mask.sum(), mask.size, *most))
        if self.alone and len(self.alone) < count:
            names = list_some([found.name for found in self.alone])
            notes.append(_NOT_COMPARED.format(max(f.control for f in self.alone), names))
        return notes


def _rank(names, window, gradients, big, precision):
    """Yield for each variable 0 if it differs, 2 if it is rounding alone, else 1; and how far."""
    sizes, distances = _norms(gradients), _norms(window, gradients)
    for name, size, distance, control in zip(names, sizes, distances, big.controls(precision)):
        found = VariableDistance(name, _ratio(distance, size), _ratio(control, size))
        if distance > max(_TIMES * control, precision.floor * size):
            yield 0, found
        else:
            yield 1 if found.control < _ALONE else 2, found


def _find_small(index, judged, window, gradients, big, precision):
    """Return the order of magnitude with the greatest difference, in a variable equal as a whole.

    That is its rank, its distance, and its mask with the variable's gradient; or None.
    """
    rank, found = judged
    masks = big.find_orders(index) if rank == 1 else []
    cut = [_cut(each, index, masks) for each in (window, gradients)]
    judged = _rank([found.name] * len(masks), *cut, big.cut(index, masks), precision)
    small = [(*each, (mask, gradients[index])) for each, mask in zip(judged, masks)]
    small = [each for each in small if each[0] == 0]
    return max(small, key=lambda each: each[1].distance) if small else None


def _cut(gradients, index, masks):
    return [gradients[index][mask] for mask in masks]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare_with_big_batch`. Print it.

    window: the distance between a variable's gradients by the window, a, and by the big batch, b:
        ||a - b|| / ||b||. Of the variable that differs most, or if it only differs there, of its
        elements whose gradients are of one order of magnitude.
    control: how far rounding moves this gradient in the big batch: the same, with samples in
        another order, weights that differ by one unit in the last place, or a multiplied loss.
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


def norm(array):
    return math.sqrt(float(np.sum(np.abs(array).astype("float64") ** 2)))


def _norms(gradients, others=None):
    if others is None:
        return list(map(norm, gradients))
    return [norm(a - b) for a, b in zip(gradients, others)]


def _ratio(distance, size):
    return distance / size if size else math.inf if distance else 0.0
