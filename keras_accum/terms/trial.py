"""A trial of a loss or metric on made-up samples: does it compare samples with each other?"""

import math

import numpy as np


def compares_samples(cast, evaluate, shapes, dtypes):
    """Return True if five samples have other values together than as three and two.

    `evaluate` gets lists of arrays, one list for each batch, and returns values of NumPy. None
    means that it rejects these shapes and dtypes. A traced train step has nothing more, so the
    samples are made up.
    """
    random, found = np.random.default_rng(0), None
    is_large = max(np.prod([n or 4 for n in shape[1:]]) for shape in shapes) > 2**18
    longest = 8 if is_large else math.inf  # to save memory

    def made_up(shape, dtype, of_class):
        """Return numbers below 1, or the classes 0 and 1."""
        sizes = [min(n or 4, longest) for n in shape[1:]]
        values = random.uniform(0.1, 0.9, [5, *sizes])
        # In large samples at one scale, a ratio of sums would hardly depend on the samples.
        values *= np.linspace(1, 0.2, 5).reshape([5] + [1] * len(sizes))
        dtype = "float32" if "float16" in dtype else dtype
        return (np.round(values) if of_class or "float" not in dtype else values).astype(dtype)

    def are_close(values, expected):
        return np.allclose(values, expected, rtol=1e-3, atol=1e-5, equal_nan=True)

    for of_class in (False, True):
        try:
            arrays = [
                made_up(shape, dtype, of_class and i == 0)
                for i, (shape, dtype) in enumerate(zip(shapes, dtypes))
            ]
            whole, first, last = (
                [cast(array[start:stop], str(array.dtype)) for array in arrays]
                for start, stop in ((0, 5), (0, 3), (3, 5))
            )
            joined, again, apart = evaluate(whole), evaluate(whole), evaluate(first, last)
            if len(apart) != len(joined):
                joined, again, apart = joined.sum(), again.sum(), apart.sum()
            # Functions with random draws never agree with themselves.
            if are_close(again, joined) and not are_close(apart, joined):
                return True
            found = False
        except Exception:  # it can't be tried
            continue
    return found


def values_of(function, read):
    """Return `evaluate` for a function that returns a value per sample, or a mean."""

    def evaluate(*batches):
        return np.concatenate([evaluate_one(arrays, arrays[0].shape[0]) for arrays in batches])

    def evaluate_one(arrays, count):
        values = read(function(*arrays))
        is_each = values.shape[:1] == (count,)
        return values if is_each else np.array([values.mean() * count])

    return evaluate
