"""A trial of a loss or a metric on made-up samples: does it compare the samples of a batch?"""

import math

import numpy as np


def compares_samples(cast, read, function, shapes, dtypes):
    """Return True if the values of five samples aren't those of three of them and of the other two.

    It is None if the function can't be tried with targets and predictions of these shapes and
    types. A traced train step knows no more, so the samples are made up.
    """
    random, found = np.random.default_rng(0), None
    is_large = np.prod([n or 4 for n in shapes[1][1:]]) > 2**18
    longest = 8 if is_large else math.inf  # so that it takes little memory

    def made_up(shape, dtype, of_class):
        """Return numbers below 1, or classes, which are 0 and 1."""
        sizes = [min(n or 4, longest) for n in shape[1:]]
        values = random.uniform(0.1, 0.9, [5, *sizes])
        # In large samples of one scale, a ratio of sums would be that of any part.
        values *= np.linspace(1, 0.2, 5).reshape([5] + [1] * len(sizes))
        dtype = "float32" if "float16" in dtype else dtype
        return (np.round(values) if of_class or "float" not in dtype else values).astype(dtype)

    def evaluate(start, stop):
        """Return the value of each sample, or their sum if a function returns their mean."""
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
            # A function that draws random numbers differs by itself.
            if are_close(again, joined) and not are_close(apart, joined):
                return True
            found = False
        except Exception:  # it can't be tried
            continue
    return found
