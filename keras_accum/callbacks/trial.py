"""A trial of a loss or metric on made-up samples: does it compare samples with each other?"""

import math

import numpy as np


def compares_samples(cast, read, function, shapes, dtypes):
    """Return True if five samples have other values together than as three and two.

    None means that the function rejects these shapes and dtypes. A traced train step has nothing
    more, so the samples are made up.
    """
    random, found = np.random.default_rng(0), None
    is_large = np.prod([n or 4 for n in shapes[1][1:]]) > 2**18
    longest = 8 if is_large else math.inf  # to save memory

    def made_up(shape, dtype, of_class):
        """Return numbers below 1, or the classes 0 and 1."""
        sizes = [min(n or 4, longest) for n in shape[1:]]
        values = random.uniform(0.1, 0.9, [5, *sizes])
        # In large samples at one scale, a ratio of sums would hardly depend on the samples.
        values *= np.linspace(1, 0.2, 5).reshape([5] + [1] * len(sizes))
        dtype = "float32" if "float16" in dtype else dtype
        return (np.round(values) if of_class or "float" not in dtype else values).astype(dtype)

    def evaluate(start, stop):
        """Return a value per sample, or their sum if the function returns a mean."""
        arrays = [cast(array[start:stop], str(array.dtype)) for array in (y_true, y_pred)]
        values = read(function(*arrays))
        is_each = values.shape[:1] == (stop - start,)
        return values if is_each else np.array([values.mean() * (stop - start)])

    def are_close(values, expected):
        return np.allclose(values, expected, rtol=1e-3, atol=1e-5, equal_nan=True)

    for of_class in (False, True):
        try:
            y_true = made_up(shapes[0], dtypes[0], of_class)
            y_pred = made_up(shapes[1], dtypes[1], False)
            joined, again = evaluate(0, 5), evaluate(0, 5)
            apart = np.concatenate([evaluate(0, 3), evaluate(3, 5)])
            if len(apart) != len(joined):
                joined, again, apart = joined.sum(), again.sum(), apart.sum()
            # Functions with random draws never agree with themselves.
            if are_close(again, joined) and not are_close(apart, joined):
                return True
            found = False
        except Exception:  # it can't be tried
            continue
    return found
