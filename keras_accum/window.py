"""When a window closes and what its gradient sum is divided by. No host is imported here.

The state is three integers, which don't exist with `accum_iters=1`:

* `window_position`: the number of micro-batches in the open window, 0 if no window is open;
* `window_length`: the number of micro-batches that closes the open window;
* `accum_iters`: the length of the next window, which may change at any time.

With `reduction="weighted"` there is a fourth scalar, `window_weight`, the weight of the gradient
sum.

Counting inside the window, not by a global counter modulo `accum_iters`, lets a short window close
with the right average, and lets `accum_iters` change in the middle of a run.

The gradient of a variable may be missing in a micro-batch, which then adds nothing to the
variable's sum. The update at the end of a window covers each variable that had a gradient in at
least one micro-batch of the window and is trainable when the window closes. The update divides the
variable's sum by the number of all micro-batches in the window. All other variables aren't touched.
After the end of a window no sum is pending: the sum of a variable that was frozen is dropped.

`missing_gradients` counts for each variable the micro-batches of the window in which the variable's
gradient was missing. The last element is the number of the window, so counts of an earlier window
are ignored. A train step without missing gradients therefore neither reads nor writes the counts.
"""

from collections import namedtuple

import numpy as np

# switch: 1 on the micro-batch that closes a window, else 0. divisor: the number of micro-batches in
# the sum, or their weight. length, position: the state after the micro-batch. missing, covered:
# None if no gradient is missing; else missing is `missing_gradients` after the micro-batch, and
# covered is 1 for each variable that has had a gradient in the window, else 0.
Step = namedtuple("Step", "switch divisor length position missing covered")


def advance(ops, position, length, accum_iters, counted, closes=None):
    """Return the step of one micro-batch.

    A dropped micro-batch (`counted` 0) changes nothing, unless the caller closes the window with it
    (`closes` 1): then the window closes with the micro-batches that it has.
    """
    length = ops.where(ops.equal(position, 0), accum_iters, length)
    count = position + counted
    switch = ops.where(count >= length, counted, 0)
    if closes is not None:
        switch = ops.where(count > 0, ops.maximum(switch, closes), switch)
    return Step(switch, count, length, count * (1 - switch), None, None)


def decided(ops, position, length, accum_iters, counted, is_update):
    """Return the step of one micro-batch, of which Python says whether it closes the window.

    `counted` is 1, which in a graph is known only after the gradients.
    """
    length = ops.where(ops.equal(position, 0), accum_iters, length)
    count, switch = position + counted, counted * int(is_update)
    return Step(switch, count, length, count * (1 - switch), None, None)


def close(position, length):
    """Return the step that closes the open window early, with the micro-batches it has."""
    return Step(1, position, length, 0, None, None)


def miss(ops, step, missing, window, absent, counted):
    """Return the step from `advance` for a micro-batch in which gradients are missing.

    `missing` is `missing_gradients` before the micro-batch. `window` is the number of the open
    window. `absent` has the indices of the variables whose gradients are missing.
    """
    indices = np.arange(missing.shape[0])
    counts = counts_of(ops, missing, window) + ops.where(np.isin(indices, absent), counted, 0)
    return step._replace(
        missing=ops.where(indices == indices[-1], window, counts),
        covered=ops.where(counts < step.divisor, ops.ones_like(missing), 0),
    )


def counts_of(ops, missing, window):
    """Return the counts of `missing_gradients` for the open window: zero if they are older."""
    return ops.where(ops.equal(missing[-1], window), missing, 0)


def of_variable(step, index):
    """Return the step for a variable whose gradient is missing in the micro-batch."""
    return step._replace(switch=step.switch * step.covered[index])


def was_seen(missing, window, position):
    """Return a NumPy mask: True for each variable that has had a gradient in the open window."""
    return counts_of(np, missing, window)[:-1] < position


def scale(ops, step, reduction, cast):
    """Return the factor from the gradient sum to the applied gradient; 0.0 inside a window."""
    if reduction == "sum":
        return cast(step.switch)
    # If the first micro-batch of a window is dropped, the divisor is 0: take 0 / 1, not 0 / 0.
    return cast(step.switch) / cast(ops.where(step.divisor > 0, step.divisor, 1))
