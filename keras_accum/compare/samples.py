"""The samples of one window, in NumPy or RaggedTensors, in any structure."""

import dataclasses
import importlib
import math

import numpy as np

from keras_accum.host import is_named

_NO_ARRAY = (
    "`{}` must be an array of samples, or a list, dict or tuple of arrays. From a dataset, take "
    "one window: `x, y = next(iter(dataset.unbatch().batch(50)))`. Received: {}"
)
_LENGTHS = "`x`, `y` and `sample_weight` must have equally many samples. Received: {}"
_NO_WINDOW = (
    "`x` must have the samples of exactly one window: {} to {}, with accum_iters={} and "
    "batch_size={}. Received: {} samples"
)
_STOCK = (
    "There is nothing to compare: with accum_iters=1, each micro-batch makes an update, as with "
    "the stock optimizer. Give the optimizer an `accum_iters` of at least 2, or `callbacks` "
    "MicroBatches."
)
_WHOLE = (
    "These samples are one micro-batch, so there is nothing to compare: give the optimizer an "
    "`accum_iters` of at least 2, or MicroBatches a size below the number of samples. Received: "
    "{} samples, with batch_size={}"
)


class Samples:
    """`x`, `y` and `sample_weight` for `fit`."""

    def __init__(self, x, y, sample_weight):
        names = "x", "y", "sample_weight"
        data = [_as_arrays(*pair) for pair in zip(names, (x, y, sample_weight))]
        self._data, counts = dict(zip(names, data)), []
        _map(lambda array: counts.append(_count(array)), data)
        if len(set(counts)) != 1:
            raise ValueError(_LENGTHS.format(counts))
        self.count = counts[0]

    def take(self, which):
        """Return arguments of `fit` with these samples, in this order."""
        return {name: _map(lambda array: _take(array, which), d) for name, d in self._data.items()}


def _as_arrays(name, data):
    """Return arrays of NumPy, or RaggedTensors, in the same dicts, lists and tuples."""

    def convert(array):
        if hasattr(array, "nested_row_splits"):
            return array
        if not (hasattr(array, "__array__") and len(getattr(array, "shape", ()))):
            raise ValueError(_NO_ARRAY.format(name, type(array).__name__))
        return np.asarray(array)

    return _map(convert, data)


def _map(function, data):
    if isinstance(data, dict):
        return {key: _map(function, value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        values = [_map(function, value) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return None if data is None else function(data)


def _count(array):
    return len(array) if isinstance(array, np.ndarray) else int(array.nrows())


def _take(array, which):
    if isinstance(array, np.ndarray) or isinstance(which, slice):
        return array[which]
    return importlib.import_module("tensorflow").gather(array, which)


def check_window(options, samples, batch_size, callbacks):
    """Return the options of each optimizer for one window with these samples.

    If they aren't one window, raise a ValueError.
    """
    slices = [c.size for c in callbacks if is_named(c, "MicroBatches")]
    is_split = any(size is None or size < samples for size in slices)
    if not slices and not any(each.accumulates for each in options):
        raise ValueError(_STOCK)
    count = math.ceil(samples / batch_size)
    lengths = {each.accum_iters for each in options if each.accumulates}
    for length in lengths or {1}:
        if isinstance(length, int) and length != count:
            most = batch_size * length
            least = most - batch_size + 1
            raise ValueError(_NO_WINDOW.format(least, most, length, batch_size, samples))
    if count == 1 and not is_split:
        raise ValueError(_WHOLE.format(samples, batch_size))
    return [
        dataclasses.replace(each, accum_iters=count) if each.is_scheduled else each
        for each in options  # a schedule's: any of its windows
    ]
