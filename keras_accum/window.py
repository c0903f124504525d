"""When a window closes and what its gradient sum is divided by. No host is imported here.

The state is three integers, none of them there at `accum_iters=1`:

* `window_position`: micro-batches counted in the open window, 0 when none is open;
* `window_length`: the number of micro-batches that closes the open window;
* `accum_iters`: the length of the next window, free to change at any time.

With `reduction="weighted"` there is a fourth scalar, `window_weight`, the weight of the sum.

Counting inside the window, instead of taking a modulo of a global counter, is what lets a short
window close with its right average and `accum_iters` change in the middle of a run.

A variable's gradient may be missing in a micro-batch: then it adds nothing. The update at the end
of a window covers each variable that had a gradient in at least one micro-batch of the window, and
divides its sum by all micro-batches of the window. A variable that had none isn't touched. After
the end of a window no sum is pending.

`missing_gradients` counts for each variable the micro-batches of the window in which its gradient
was missing. The last element is the number of the window: the counts of an earlier window mean
nothing. So a train step in which no gradient is missing neither reads nor writes the counts.
"""

from collections import namedtuple

import numpy as np

# switch: 1 on the micro-batch that closes a window, else 0. divisor: the number of micro-batches in
# the sum, or their weight. length, position: the state after the micro-batch. If a gradient is
# missing, missing is `missing_gradients` after the micro-batch, and covered has for each variable 1
# if it has had a gradient in the window, else 0.
Step = namedtuple("Step", "switch divisor length position missing covered")


def advance(ops, position, length, accum_iters, counted):
    """One micro-batch. A micro-batch that was dropped (`counted` 0) moves and closes nothing."""
    length = ops.where(ops.equal(position, 0), accum_iters, length)
    count = position + counted
    switch = ops.where(count >= length, counted, 0)
    return Step(switch, count, length, count * (1 - switch), None, None)


def close(position, length):
    """Close the open window as it is, after fewer micro-batches than it was meant to have."""
    return Step(1, position, length, 0, None, None)


def miss(ops, step, missing, window, absent, counted):
    """The step, as `advance` has made it, of a micro-batch in which gradients are missing.

    `missing` is `missing_gradients` before the micro-batch, `window` the number of the open window,
    `absent` has the indices of the variables whose gradients are missing.
    """
    indices = np.arange(missing.shape[0])
    counts = counts_of(ops, missing, window) + ops.where(np.isin(indices, absent), counted, 0)
    return step._replace(
        missing=ops.where(indices == indices[-1], window, counts),
        covered=ops.where(counts < step.divisor, ops.ones_like(missing), 0),
    )


def counts_of(ops, missing, window):
    """What `missing_gradients` counts in the open window."""
    return ops.where(ops.equal(missing[-1], window), missing, 0)


def of_variable(step, index):
    """The step as it is for a variable whose gradient is missing in the micro-batch."""
    return step._replace(switch=step.switch * step.covered[index])


def was_seen(missing, window, position):
    """For each variable whether it has had a gradient in the open window. Of NumPy arrays."""
    return counts_of(np, missing, window)[:-1] < position


def scale(ops, step, reduction, cast):
    """The factor that turns the window's gradient sum into what is applied; 0.0 inside a window."""
    if reduction == "sum":
        return cast(step.switch)
    # A window whose first micro-batch was dropped has counted nothing: 0 / 1, not 0 / 0.
    return cast(step.switch) / cast(ops.where(step.divisor > 0, step.divisor, 1))
