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

    def take(self, indices):
        """Return arguments of `fit` with the samples at these indices, an array or a slice."""

        def take(array):
            return _take(array, indices)

        return {name: _map(take, data) for name, data in self._data.items()}


def _as_arrays(name, data):
    """Return NumPy arrays or RaggedTensors in the same dicts, lists and tuples."""

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


def _take(array, indices):
    if isinstance(array, np.ndarray) or isinstance(indices, slice):
        return array[indices]
    return importlib.import_module("tensorflow").gather(array, indices)


def list_slice_sizes(callbacks):
    """Return the sizes of slices in MicroBatches: None where it finds one by itself."""
    return [callback.size for callback in callbacks if is_named(callback, "MicroBatches")]


def check_window(option_sets, samples, batch_size, callbacks):
    """Return the Options of each optimizer for one window with this number of samples.

    If they aren't one window, raise a ValueError.
    """
    slice_sizes = list_slice_sizes(callbacks)
    is_split = any(size is None or size < samples for size in slice_sizes)
    if not slice_sizes and not any(options.accumulates for options in option_sets):
        raise ValueError(_STOCK)
    count = math.ceil(samples / batch_size)
    lengths = {options.accum_iters for options in option_sets if options.accumulates}
    for length in lengths or {1}:
        if isinstance(length, int) and length != count:
            most = batch_size * length
            least = most - batch_size + 1
            raise ValueError(_NO_WINDOW.format(least, most, length, batch_size, samples))
    if count == 1 and not is_split:
        raise ValueError(_WHOLE.format(samples, batch_size))
    return [  # with a schedule, samples may be any of its windows
        dataclasses.replace(options, accum_iters=count) if options.is_scheduled else options
        for options in option_sets
    ]
