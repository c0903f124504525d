"""Sizes of the micro-batches in a training, as far as the calls of losses show them."""

import weakref

import numpy as np

from keras_accum.callbacks.micro_batch_weights import are_means

# By optimizer: {number of the call: sizes}, and the same with Extremes and names of losses.
_kept = weakref.WeakKeyDictionary()


class Sizes:
    """What losses are divided by: values per sample, and values in a micro-batch.

    An eager step shows each micro-batch, and a traced one each new shape. Both are kept for later
    trainings, because traces are, and so are variables for sizes that a graph doesn't know.
    Calls are compared by their number in a step, which may have several of other samples.

    counts_samples: False if another number of samples alone makes no difference.
    """

    def __init__(self, optimizer, losses, library, counts_samples):
        self._counts_samples = counts_samples
        self._known, self._extremes, self._names = _kept.setdefault(optimizer, ({}, {}, {}))
        self._values = optimizer._accumulation.values
        self._innermost = slice(1) if library.make_extremes else slice(-1, None)
        self._is_first, self._traces = True, []
        for number in range(losses if library.make_extremes else 0):
            if number not in self._extremes:
                self._extremes[number] = library.make_extremes()
            self._extremes[number].reset()

    def end_step(self):
        """End a step. The first one of a training has begun a new comparison."""
        self._is_first, self._traces = False, []

    def look(self, calls):
        """Note the size of the last of these calls."""
        # TensorFlow traces a function in a step twice, and JAX each gradient once more.
        call, trace = calls[-1], self._values.traces()[self._innermost]
        number = self._traces.count(trace)
        self._traces.append(trace)
        if not call.is_per_sample or call.has_mask or call.divides_by_weights:
            return
        if not are_means([call.loss]):
            return
        self._names[number] = call.loss.name or type(call.loss).__name__
        if None not in call.shape:
            sizes = set() if self._is_first else self._known.get(number, set())
            self._known[number] = {*sizes, (np.prod(call.shape[1:]), np.prod(call.shape))}
        elif number in self._extremes and (self._counts_samples or None in call.shape[1:]):
            self._extremes[number].add(call.values)

    def find_unequal(self, reads):
        """Return a loss's name and two numbers of values, or None if all are equal.

        reads: True to read variables, too.
        """
        for number, name in self._names.items():
            sizes = self._known.get(number, set())
            if reads and number in self._extremes:
                sizes = sizes | self._extremes[number].read()
            each, total = (set(part) for part in zip(*sizes)) if sizes else ((), ())
            if len(total) > 1 and (self._counts_samples or len(each) > 1):
                return name, int(min(total)), int(max(total))
        return None
