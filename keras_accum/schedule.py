"""Windows whose lengths change during a training. No host is imported here."""

import numbers
import re

from keras_accum.ranges import is_number, refusal

MOST = 2**31 - 1  # Keras 3 has counters in int32
ENDLESS = MOST  # the length, in a state, of a window that only the caller closes

_NOT_A_LENGTH = (
    "`accum_iters` must be an integer >= 1 and below 2**31: the number of micro-batches "
    "that make one update. Received: accum_iters={!r}"
)
_RETURNED = (
    "The function that was given as `accum_iters` must return an integer >= 1 and below 2**31: the "
    "number of micro-batches in the window after this number of completed updates. "
    "Received: {!r}{}"
)
_FAILED = (
    "The function that was given as `accum_iters` can't be part of a train step. A train step "
    "calls the function with a tensor, so the function must compute with operators or `keras.ops` "
    "(`tf.where`), without `if` and `min`. Or use `AccumulationSchedule`."
)


def is_length(value):
    """True for a number of micro-batches in a window."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_integer and 1 <= value <= MOST


def check_length(accum_iters):
    """Return a number of micro-batches as an int."""
    if not is_length(accum_iters):
        raise refusal(accum_iters)(_NOT_A_LENGTH.format(accum_iters))
    return int(accum_iters)


class AccumulationSchedule:
    """Windows of other lengths as a training goes on, for `accum_iters` of an optimizer.

    A window has the length of the greatest key that isn't above the number of completed updates. An
    optimizer looks up the length at the start of each window. The traced train step does this
    itself: nothing is traced again, and the graph has no conditional.

    The schedule is part of the optimizer's config and so of files. `optimizer.accum_iters` is the
    length of the next window.

    Args:
        lengths: Dictionary `{completed updates: accum_iters}`, or a list of such pairs. Updates are
            integers >= 0 and below `2**31`, and one of them is 0. Lengths are integers >= 1 and
            below `2**31`.

    Raises:
        TypeError: If `lengths` isn't a dictionary or a list of pairs, or has something that isn't a
            number.
        ValueError: If a number is out of its range, or if 0 isn't among the updates.

    Example:

    >>> from keras_accum import AccumulationSchedule, AdamAccumulate
    >>> schedule = AccumulationSchedule({0: 1, 1000: 4, 5000: 16})
    >>> [schedule(updates) for updates in (0, 999, 1000, 1000000)]
    [1, 1, 4, 16]
    >>> optimizer = AdamAccumulate(accum_iters=schedule)
    >>> schedule.updates_in(9000)
    3000
    >>> schedule.micro_batches_in(3000)
    9000
    """

    def __init__(self, lengths):
        try:
            lengths = dict(lengths)
        except (TypeError, ValueError) as error:
            raise TypeError(
                "`lengths` must be a dictionary {completed updates: accum_iters}, such as "
                f"{{0: 1, 1000: 4}}. Received: lengths={lengths!r}"
            ) from error
        for updates, length in lengths.items():
            if not (updates == 0 or is_length(updates)) or isinstance(updates, bool):
                raise refusal(updates)(
                    "The keys of `lengths` must be integers >= 0 and below 2**31: numbers of "
                    f"completed updates. Received: {updates!r}"
                )
            if not is_length(length):
                raise refusal(length)(
                    "The values of `lengths` must be integers >= 1 and below 2**31: the "
                    f"micro-batches in a window. Received: {length!r}"
                )
        if 0 not in lengths:
            raise ValueError(
                "`lengths` must have the key 0, with the length of the first windows. "
                f"Received: lengths={lengths!r}"
            )
        self._lengths = sorted((int(updates), int(n)) for updates, n in lengths.items())

    def __call__(self, updates):
        """Return the length of the window after this number of completed updates, an int."""
        return max(pair for pair in self._lengths if pair[0] <= updates)[1]

    def at(self, ops, updates):
        """Return the same for a tensor, with the `where` and `ones_like` of `ops`."""
        ones = ops.ones_like(updates)
        (_, length), *later = self._lengths
        length = length * ones
        for start, new in later:
            length = ops.where(updates >= start, new * ones, length)
        return length

    def updates_in(self, micro_batches):
        """Return the number of updates that the first micro-batches of a training make, an int.

        This is the number of steps for a schedule of the learning rate that ends with the training.

        Args:
            micro_batches: Integer >= 0. The number of micro-batches.
        """
        done, ends = 0, [start for start, _ in self._lengths[1:]]
        for (start, length), end in zip(self._lengths, [*ends, None]):
            updates = micro_batches // length
            if end is None or updates < end - start:
                return done + updates
            micro_batches -= (end - start) * length
            done = end

    def micro_batches_in(self, updates):
        """Return the number of micro-batches that the first updates of a training take.

        A schedule of the learning rate that calls this method counts samples instead of updates.

        Args:
            updates: Integer >= 0, or a tensor of integers. The number of completed updates.
        """
        count, last = 0, 0
        for start, length in self._lengths:
            after = updates - start
            after = (after + abs(after)) // 2  # 0 before the start
            count, last = count + (length - last) * after, length
        return count

    @property
    def longest(self):
        """The greatest of the lengths."""
        return max(length for _, length in self._lengths)

    def get_config(self):
        """Return the arguments of the constructor, as JSON can hold them."""
        return {"lengths": [list(pair) for pair in self._lengths]}

    @classmethod
    def from_config(cls, config):
        """Return the schedule of a config from `get_config`."""
        return cls(**config)

    def __repr__(self):
        return f"AccumulationSchedule({dict(self._lengths)})"

    def __eq__(self, other):
        return isinstance(other, AccumulationSchedule) and self._lengths == other._lengths

    def __hash__(self):
        return hash(tuple(self._lengths))


def check(accum_iters):
    """Return an argument `accum_iters`: an int, None, an AccumulationSchedule or a function."""
    if accum_iters is None:
        return None
    if isinstance(accum_iters, dict) and accum_iters.get("class_name") == "AccumulationSchedule":
        return AccumulationSchedule.from_config(accum_iters["config"])  # from `config_of`
    if not callable(accum_iters):
        return check_length(accum_iters)
    length_at(accum_iters, 0)
    return accum_iters


def config_of(schedule):
    """Return an AccumulationSchedule as a part of a config, on every Keras."""
    return {"class_name": "AccumulationSchedule", "config": schedule.get_config()}


def length_at(accum_iters, updates):
    """Return the length of the window after this number of completed updates, an int."""
    if accum_iters is None:
        return ENDLESS
    if not callable(accum_iters):
        return accum_iters
    return returned(accum_iters(updates), updates)


def returned(length, updates=None):
    """Return what a user's function returned as an int; a tensor must have a value."""
    number = int(length) if _has_integers(length) else length
    if not is_length(number):
        after = "" if updates is None else f" after {updates} updates"
        raise refusal(number)(_RETURNED.format(length, after))
    return number


def _has_integers(tensor):
    """True for a tensor or an array of integers."""
    return re.search(r"\bu?int\d+\b", str(getattr(tensor, "dtype", ""))) is not None


def length_in_step(accum_iters, ops, updates, cast):
    """Return the same in a train step, where `updates` may be a tensor of a traced program.

    A traced program can't raise an error: it takes a number below 1 as 1.
    """
    if isinstance(updates, numbers.Integral):
        return length_at(accum_iters, int(updates))
    if isinstance(accum_iters, AccumulationSchedule):
        return accum_iters.at(ops, updates)
    try:
        length = accum_iters(updates)
    except Exception as error:
        raise TypeError(_FAILED) from error
    if is_number(length):
        length = returned(length)
    elif not _has_integers(length):
        raise TypeError(_RETURNED.format(length, " in a train step"))
    length = cast(length, updates.dtype)
    return ops.where(length < 1, ops.ones_like(length), length)
