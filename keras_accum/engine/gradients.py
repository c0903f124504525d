"""A micro-batch, and weighting, dropping and transforming its gradients, if asked to.

No Keras is imported here.
"""

from typing import Any, NamedTuple, Sequence

from keras_accum.engine.parts import fits
from keras_accum.engine.window import is_known, unconditional

_LARGEST = 3e38  # not infinity, which debuggers report


class MicroBatch(NamedTuple):
    """A micro-batch on its way through the engine."""

    gradients: list  # one for each variable, summed over replicas
    variables: list  # the model's own list, if all have a gradient
    weight: Any = None  # what its loss is divided by; None if micro-batches have no weights
    factor: Any = 1  # what the sums still have to multiply the gradients by
    is_sum: bool = False  # True if its loss is a sum, divided by nothing
    counted: Any = None  # 1, or 0 if it is dropped
    absent: Sequence = ()  # indices of the model's variables without a gradient


def apply_weight(accumulation, weight, gradients, variables):
    """Return the micro-batch, its gradients multiplied by the weight.

    Some sums multiply by themselves when they add. The factor includes the number of replicas,
    because Keras divides each replica's loss by it. A weight that isn't finite makes the gradients
    infinite or NaN, and counts as 1, because at 0 they wouldn't show.
    """
    values, open_window = accumulation.values, accumulation.window
    weight = values.scalar(weight, open_window.weight.dtype)
    sums = accumulation.sums
    if is_known(weight) and values.adds_multiples and weight and _is_finite(weight):
        return MicroBatch(gradients, variables, weight, factor=float(weight))
    factor = weight * accumulation.replicas.count()
    if is_known(weight):
        weight = weight if _is_finite(weight) else type(weight)(1)
    else:
        ops = values.ops
        weight = ops.where(_is_finite(weight), weight, ops.ones_like(weight))
    gradients = sums.as_summed(gradients, variables)
    return MicroBatch(values.scale_all(gradients, factor), variables, weight)


def drop_bad(accumulation, batch):
    """Return 1 and the gradients, or 0 and zeros if the micro-batch is dropped."""
    values, options, gradients = accumulation.values, accumulation.options, batch.gradients
    counted = (values.all_finite if options.skip_nonfinite else values.one_when_computed)(gradients)
    if options.skip_norm is not None:
        norm = values.norm(gradients)
        if batch.weight is not None and batch.factor == 1:
            norm = norm / _size(values, batch.weight, norm.dtype)
        if callable(options.skip_norm):
            counted = counted * (1 - values.count_if(options.skip_norm(norm)))
        else:
            counted = counted * values.count_if(norm <= options.skip_norm)  # false for NaN
    return counted, values.zero_unless(gradients, counted)


def _is_finite(weight):
    return abs(weight) < _LARGEST  # False for NaN


def _size(values, weight, dtype):
    """Return the weight's size as a divisor: at 0 the norm is 0 already, and 0 / 0 is NaN."""
    size = abs(weight)
    if is_known(weight):
        return size if size > 0 else 1
    return values.cast(values.ops.where(size > 0, size, values.ops.ones_like(weight)), dtype)


def transform(accumulation, sums, totals, variables, steps):
    """Apply the user's `window_transforms`. Return the result, and zeros inside a window.

    The functions get averages in every micro-batch, never the zeros of an open window.
    """
    averages = gradients = sums.averages(totals, list(map(unconditional, steps)))
    for function in accumulation.options.window_transforms:
        gradients = list(function(list(gradients), list(variables)))
        if len(gradients) != len(variables) or not all(map(fits, gradients, variables)):
            received = ", ".join(str(None if g is None else g.shape) for g in gradients)
            shapes = ", ".join(str(variable.shape) for variable in variables)
            raise ValueError(
                "A function of `window_transforms` must return one gradient for each variable, in "
                "the order of the variables and of the same shapes. Received from "
                f"{function}: the shapes {received}, for gradients of the shapes {shapes}"
            )
    values = accumulation.values
    cast = [values.cast(new, average.dtype) for new, average in zip(gradients, averages)]
    return values.mask(cast, [step.switch for step in steps])
