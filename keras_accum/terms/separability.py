"""Is a loss or metric separable, or does it compare samples? Tested on made-up samples."""

import numpy as np

from keras_accum.terms.term import Answer, read_shape


def _replace_by(value):
    def replace(numbers, random):
        return np.where(random.uniform(size=numbers.shape) < 0.4, value, numbers)

    return replace


# The targets of a trial, from numbers below 1, and the answer if samples differ then.
_TARGETS = [
    (lambda numbers, _: numbers, Answer.DIFFER),
    (lambda numbers, _: np.round(numbers), Answer.DIFFER),  # the classes 0 and 1
    *((_replace_by(value), Answer.DIFFER_IF_MISSING) for value in (-1, -100, np.nan)),
]


def try_loss(host, function, arrays):
    """Return the Answer for a function, given what it gets in a train step; None if unknown.

    function: returns a value per sample, or their mean.
    """

    def call_on(batches):
        return [function(*batch) for batch in batches]

    def join(values, counts):
        pairs = zip(values, counts)
        return np.concatenate([v if v.shape[:1] == (n,) else [v.mean() * n] for v, n in pairs])

    return try_on_samples(host, call_on, join, arrays)


def try_on_samples(host, call_on, join, arrays):
    """Return the Answer for what is called on batches, as `compare`.

    call_on: returns arrays for a list of batches.
    join: returns them as one, given the number of samples in each batch.
    """
    dtypes = [getattr(array, "dtype", None) for array in arrays]  # None of a dictionary: rejected
    names = [str(getattr(dtype, "name", dtype)).split(".")[-1] for dtype in dtypes]
    run = host.prepare(call_on)

    def evaluate(groups, with_missing):
        counts = [[len(batch[0]) for batch in batches] for batches in groups]
        return list(map(join, run(groups, with_missing), counts))

    return compare(evaluate, list(map(read_shape, arrays)), names)


def compare(evaluate, shapes, dtypes):
    """Return the Answer for five samples together, and as three and two.

    Return None if `evaluate` rejects samples of these shapes and dtypes. They are made up, because
    a traced train step knows no values.

    evaluate: gets three lists of batches, each a list of NumPy arrays, and whether targets are
        missing, and returns the values of each list as a NumPy array.
    """
    random, answer = np.random.default_rng(0), None
    shapes = _crop([_complete(shape, shapes) for shape in shapes])

    def made_up(shape, dtype, change):
        """Return numbers below 1 that are changed."""
        values = random.uniform(0.1, 0.9, [5, *shape])
        # In large samples at one scale, a ratio of sums would hardly depend on the samples.
        values *= np.linspace(1, 0.2, 5).reshape([5] + [1] * len(shape))
        dtype = "float32" if "float16" in dtype else dtype
        values = change(values if "float" in dtype else np.round(values), random)
        with np.errstate(invalid="raise"):  # no integer is NaN
            return values.astype(dtype)

    for change, if_different in _TARGETS:
        try:
            changes = [change, *[_TARGETS[0][0]] * (len(shapes) - 1)]
            arrays = list(map(made_up, shapes, dtypes, changes))
            # Copies, because a loss may write into its arrays, which PyTorch shares.
            whole, same, first, last = (
                [array[start:stop].copy() for array in arrays]
                for start, stop in ((0, 5), (0, 5), (0, 3), (3, 5))
            )
            with_missing = if_different is Answer.DIFFER_IF_MISSING
            joined, again, apart = evaluate([[whole], [same], [first, last]], with_missing)
            if len(apart) != len(joined):
                joined, again, apart = joined.sum(), again.sum(), apart.sum()
            if not np.isfinite(joined).all():  # NaN for NaN says nothing
                continue
            # Functions with random draws never agree with themselves, not even when they are small.
            is_sure = np.allclose(again, joined, rtol=1e-5, atol=1e-7)
            if is_sure and not np.allclose(apart, joined, rtol=1e-3, atol=1e-5):
                return if_different
            answer = Answer.SAME
        except Exception:  # it can't be tried
            continue
    return answer


def _complete(shape, shapes):
    """Return a sample's shape; what a graph doesn't know is as in another array, or 4."""
    alike = [other for other in shapes if len(other) == len(shape)]
    axes = range(1, len(shape))
    return [shape[i] or next((other[i] for other in alike if other[i]), 4) for i in axes]


def _crop(shapes):
    """Return shapes of smaller samples where they are large, to save memory and time.

    A network in a loss may take a minute for images. An axis of channels or classes stays whole
    while it can, and lengths are enough for the window of SSIM.
    """
    last = max(map(len, shapes)) - 1
    for size, end in ((2**12, last), (2**16, last + 1)):
        if max(map(np.prod, shapes)) > size:
            shapes = [[min(n, 16) for n in shape[:end]] + shape[end:] for shape in shapes]
    return shapes
