"""Which micro-batches count: `skip_nonfinite` and `skip_norm`. No host is imported here."""

from itertools import compress


def counted(port, options, gradients, summed, weight):
    """Return 1 and the gradients, or 0 and zero gradients if the micro-batch is dropped.

    `summed` has True for each gradient that is added to a sum.
    """
    if not options.drops:
        return port.one_after(gradients), gradients
    count = (port.all_finite if options.skip_nonfinite else port.one_after)(gradients)
    if options.skip_norm is not None:
        norm = port.norm(list(compress(gradients, summed))) / port.loss_scale
        if weight is not None:
            norm = norm / port.cast(weight, norm.dtype)
        count = count * _is_within(port, options.skip_norm, norm)
    return count, port.kept(gradients, count)


def _is_within(port, skip_norm, norm):
    """Return the count 1 if a micro-batch with this norm of its gradient passes."""
    if callable(skip_norm):
        return 1 - port.count_if(skip_norm(norm))
    return port.count_if(norm <= skip_norm)  # false for NaN
