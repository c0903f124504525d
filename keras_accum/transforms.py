"""The functions of a user on the average gradient of a window. No host is imported here."""

_RETURNED = (
    "A function of `window_transforms` must return one gradient for each variable, in the order of "
    "the variables and of the same shapes. Received from {}: the shapes {}, for gradients of the "
    "shapes {}"
)


def applied(transforms, gradients, variables):
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
