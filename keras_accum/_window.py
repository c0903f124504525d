"""When a window closes and what its gradient sum is divided by. No host is imported here.

The state is three integers, none of them there at `accum_iters=1`:

* `window_position`: micro-batches counted in the open window, 0 when none is open;
* `window_length`: the number of micro-batches that closes the open window;
* `accum_iters`: the length of the next window, free to change at any time.

With `reduction="weighted"` there is a fourth scalar, `window_weight`, the weight of the sum.

Counting inside the window, instead of taking a modulo of a global counter, is what lets a short
window close with its right average and `accum_iters` change in the middle of a run.
"""

from collections import namedtuple

# switch: 1 on the micro-batch that closes a window, else 0. divisor: the number of micro-batches in
# the sum, or their weight. length, position: the state after the micro-batch.
Step = namedtuple("Step", "switch divisor length position")


def advance(ops, position, length, accum_iters, counted):
    """One micro-batch. A micro-batch that was dropped (`counted` 0) moves and closes nothing."""
    length = ops.where(ops.equal(position, 0), accum_iters, length)
    count = position + counted
    switch = ops.where(count >= length, counted, 0)
    return Step(switch, count, length, count * (1 - switch))


def close(position, length):
    """Close the open window as it is, after fewer micro-batches than it was meant to have."""
    return Step(1, position, length, 0)


def scale(ops, step, reduction, cast):
    """The factor that turns the window's gradient sum into what is applied; 0.0 inside a window."""
    if reduction == "sum":
        return cast(step.switch)
    # A window whose first micro-batch was dropped has counted nothing: 0 / 1, not 0 / 0.
    return cast(step.switch) / cast(ops.where(step.divisor > 0, step.divisor, 1))
