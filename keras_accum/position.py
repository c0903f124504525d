"""Where in its data a training is, from an optimizer's counters. No Keras is imported here."""

import itertools
from typing import NamedTuple

from keras_accum import schedule


class PositionInData(NamedTuple):
    """The epoch that a training is in, from 0, and how many of its samples are done."""

    epoch: int
    done: int


def find_position(accumulation, samples, batch_size, ends_with_epoch):
    """Return the PositionInData, as `Accumulating.position_in_data` describes it."""
    samples, batch_size = _read("samples", samples), _read("batch_size", batch_size)
    if ends_with_epoch is None:
        ends_with_epoch = accumulation.options.ends_with_epoch
    batches = -(-samples // batch_size)
    epoch, batch = 0, 0
    for length in _find_lengths(accumulation):
        batch += length
        if ends_with_epoch and batch >= batches:
            epoch, batch = epoch + 1, 0
    batch += accumulation.state.counter("window_position")
    if not ends_with_epoch:
        epoch, batch = divmod(batch, batches)
    if batch > batches:
        raise ValueError(
            f"The open window has more micro-batches than its epoch, which has {batches}. Give "
            "the `samples` and `batch_size` of the training, and `ends_with_epoch=False` if "
            "windows continue in the next epoch. Received: "
            f"samples={samples}, batch_size={batch_size}, ends_with_epoch={ends_with_epoch}"
        )
    return PositionInData(epoch, min(batch * batch_size, samples))


def _read(name, value):
    count = schedule.read_count(value, 1)
    if count is None:
        raise schedule.refusal(value)(
            f"`{name}` must be an integer >= 1 and below 2**31. Received: {name}={value!r}"
        )
    return count


def _find_lengths(accumulation):
    """Return the length of each closed window, or raise a ValueError."""
    options = accumulation.options
    why = None
    if options.drops:
        why = "dropped micro-batches (`skip_nonfinite`, `skip_norm`) aren't counted"
    elif options.accum_iters is None:
        why = "with `accum_iters=None`, windows have any length"
    elif options.accumulates and accumulation.state.counter("accum_iters"):
        why = "`accum_iters` was set, and only an AccumulationSchedule tells earlier lengths"
    if why is not None:
        raise ValueError(
            f"The counters don't show the position in the data: {why}. Save at the end of "
            "epochs, or save your own count of micro-batches beside the model. "
            f"Received: {accumulation.optimizer!r}"
        )
    updates = accumulation.state.counter("completed_updates")
    if options.is_scheduled:
        return map(options.accum_iters, range(updates))
    return itertools.repeat(options.accum_iters, updates)
