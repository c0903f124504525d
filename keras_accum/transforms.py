"""The functions of a user on the average gradient of a window. No host is imported here."""

from itertools import compress

from keras_accum import gates

_RETURNED = (
    "A function of `window_transforms` must return one gradient for each variable, in the order of "
    "the variables and of the same shapes. Received from {}: the shapes {}, for gradients of the "
    "shapes {}"
)


def averages(port, options, totals, variables, steps):
    """Return what the sums of a window become in an update, after the functions of a user."""
    if not options.window_transforms:
        return port.averages(totals, variables, steps, options.reduction)
    # A user's function gets no zeros, and what it returns inside a window becomes zero.
    certain = {id(step): gates.certain(step) for step in steps}
    due = [certain[id(step)] for step in steps]
    found = port.averages(totals, variables, due, options.reduction)
    summed = [not port.overwrites(variable) for variable in variables]
    gradients = [average / port.loss_scale for average in compress(found, summed)]
    gradients = iter(
        _applied(options.window_transforms, gradients, list(compress(variables, summed)))
    )

    def gated(average, step):
        gradient = port.cast(next(gradients) * port.loss_scale, average.dtype)
        if gates.is_certain(step.switch):
            return gradient
        return port.times(gradient, port.cast(step.switch, gradient.dtype))

    return [
        gated(average, step) if is_summed else average
        for average, step, is_summed in zip(found, steps, summed)
    ]


def _applied(transforms, gradients, variables):
    """Return the gradients after all functions, one after the other."""
    for transform in transforms:
        shapes = list(map(_shape, gradients))
        gradients = list(transform(list(gradients), list(variables)))
        found = list(map(_shape, gradients))
        if len(found) != len(shapes) or not all(map(_fits, found, shapes)):
            raise ValueError(_RETURNED.format(transform, found, shapes))
    return gradients


def _shape(tensor):
    """Return a shape as a tuple, with None for a size that a graph doesn't know."""
    if tensor is None:
        return "none"
    if getattr(tensor.shape, "rank", 0) is None:
        return (None,)
    return tuple(getattr(size, "value", size) for size in tensor.shape)  # TensorFlow 1 has `value`


def _fits(found, shape):
    is_known = None not in (*found, *shape)
    return found == shape if is_known else found != "none"
