"""Is a loss or metric separable, or does it compare samples? Tested on made-up samples."""

import math

import numpy as np


def compares_samples(cast, evaluate, shapes, dtypes):
    """Return True if five samples have other values together than as three and two.

    Return None if `evaluate` rejects samples of these shapes and dtypes. They are made up, because
    a traced train step knows no values.

    evaluate: gets a list of arrays for each batch, and returns the values as a NumPy array.
    """
    random, answer = np.random.default_rng(0), None
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
            answer = False
        except Exception:  # it can't be tried
            continue
    return answer


def values_of(function, read):
    """Return `evaluate` for a function that returns a value per sample, or a mean."""

    def evaluate(*batches):
        return np.concatenate([evaluate_one(arrays, arrays[0].shape[0]) for arrays in batches])

    def evaluate_one(arrays, count):
        values = read(function(*arrays))
        is_per_sample = values.shape[:1] == (count,)
        return values if is_per_sample else np.array([values.mean() * count])

    return evaluate
