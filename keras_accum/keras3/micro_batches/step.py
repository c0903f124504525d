"""A train step in slices: the code for all backends."""

import keras
from keras import ops

from keras_accum.engine.parts import scalar_dtype, sum_dtype
from keras_accum.host import warn_once
from keras_accum.keras3.generators import make_generator
from keras_accum.keras3.micro_batches.halving import Halving
from keras_accum.keras3.micro_batches.metrics import find_reason
from keras_accum.keras3.micro_batches.passes import NotTwice, OnePass, TwoPasses
from keras_accum.terms.reader import LossReader

LENGTHS = (
    "MicroBatches slices samples: the first dimension of all arrays in a batch must be the number "
    "of samples. Received first dimensions: {}"
)
DENSE = (
    "MicroBatches can slice dense arrays only. Convert yours, or leave the callback out and train "
    "on micro-batches with an optimizer of keras_accum. Received: an array of type {}"
)
_SEVERAL = (
    'MicroBatches("auto") can\'t be used with several replicas or processes: a step that failed in '
    "one of them can't be undone. Give a size. Received: {}"
)
_TWICE = "MicroBatches: {}. So the loss is computed for the whole batch, in a second forward pass."
_BY_SAMPLES = (
    "MicroBatches: {0}. The whole batch would need a second forward pass, which can't be used "
    "here, so slices count by their samples, and your results may differ. If each value of the "
    "loss is of one sample, write MicroBatches(loss='sample'). The reason: {1}"
)


class StepInSlices(Halving):
    """A train step in slices.

    Backends define `compute_gradients(objective, arrays)`, with gradients by weights, gradients by
    arrays and the auxiliary result of `objective`.
    compiles_itself: True if the step is called from Python, with its phases compiled.
    is_first: True until a training's first batch.
    in_slices: True if any step has used slices.
    runs_eagerly: returns True if Python sees the values in a step.
    of_slices: names of metrics that layers update with values of a slice, such as its mean.
    is_settled: True once one pass was enough for a batch in this training.
    train_whole: the model's own train step, for a batch that is one slice.
    """

    compiles_itself = False

    @property
    def totals_dtype(self):
        """The dtype of sums over slices other than gradients."""
        return scalar_dtype(keras.backend.floatx())

    @staticmethod
    def runs_eagerly():
        return False

    def __init__(self, model, size, loss, host):
        self.host, self.model, self.loss, self.train_whole = host, model, loss, model.train_step
        self.one_pass, self.two_passes = OnePass(self), TwoPasses(self)
        self.searches, self.in_slices = size == "auto", False
        self.size = None if self.searches else size
        self._compiled = model._loss_tracker  # a new one for each `compile`

    def fits(self, model):
        """Return True for the same model, not compiled again: what is known of its loss holds."""
        return model is self.model and model._loss_tracker is self._compiled

    def begin_training(self):
        """Start a training, or raise an error if the model can't be trained in slices."""
        self.is_first, self.optimizer = True, self.model.optimizer
        self.is_settled, self.of_slices = False, set()
        self.two_passes.agrees = False
        self.reader = LossReader(self.host, self.model, None, self.totals_dtype)
        if self.searches and self.devices() > 1:
            raise ValueError(_SEVERAL.format(self.devices()))
        if self.loss == "batch":
            self.two_passes.check_model()
        if self.loss != "sample":
            make_generator()

    def __call__(self, data):
        """Run one step; JAX overrides this to pass the state."""
        rows = self.count_rows(data)
        self.build(data)
        is_whole = self.is_one_slice(rows)
        if not self.model.trainable_weights or (is_whole and not self.searches):
            return self.train_whole(data)
        count = self.count_in_graph(data) if rows is None else rows
        if is_whole:
            gradients, _ = self.one_pass.differentiate(data, count)
        else:
            gradients = self.gradients(data, count)
        self.apply(gradients)
        return self.model.get_metrics_result()

    def end(self):
        """End a training, or raise an error if a step failed that had returned already."""

    def build(self, data):
        """Create variables if Keras hasn't done so."""

    def count_rows(self, batch):
        """Return a batch's number of samples, None if TensorFlow's graph computes it."""
        arrays = [array for array in keras.tree.flatten(batch) if array is not None]
        counts = {array.shape[0] if len(array.shape) else 1 for array in arrays}
        if len(counts - {None}) > 1:
            raise ValueError(LENGTHS.format(counts))
        return None if None in counts else counts.pop()

    def replicas(self):
        return 1

    def devices(self):
        return self.replicas()

    def is_one_slice(self, rows):
        return self.size is None or (rows is not None and rows <= self.size)

    def apply(self, gradients):
        self.optimizer.apply(gradients, self.model.trainable_weights)

    def slices(self, data, rows):
        """Yield slices that differ by at most one sample: a single one may be too few."""
        number = -(-rows // self.size)
        starts = [-(-i * rows // number) for i in range(number + 1)]
        for start, stop in zip(starts, starts[1:]):
            yield self.get_slice(data, start, stop - start), stop - start

    def get_slice(self, data, start, count):
        stop = start + count
        return keras.tree.map_structure(lambda a: None if a is None else a[start:stop], data)

    def called(self):
        """Return what Keras's train step calls: the model, or a wrapper around it."""
        return self.model

    def call(self, x):
        called = self.called()
        return called(x, training=True) if self.model._call_has_training_arg else called(x)

    def track_loss(self, loss, rows):
        self.model._loss_tracker.update_state(loss * self.replicas(), sample_weight=rows)

    def track_metrics(self, y, y_pred, sample_weight):
        """Update the compiled metrics with a slice or batch."""
        # Not `compute_metrics`: its results would be reduced over processes in each slice.
        if self.model._compile_metrics is not None:
            self.model._compile_metrics.update_state(y, y_pred, sample_weight)

    def gradients(self, data, rows):
        """Return a batch's gradients, updating all variables but the weights."""
        return self.finish(self.add_up(data, rows), rows)

    def add_up(self, data, rows):
        """Return the sums over a batch's slices, for `finish`."""
        self.in_slices = True
        add_up = self.two_passes.add_up if self.loss == "batch" else self._choose
        return add_up(data, rows)

    def finish(self, sums, rows):
        """Return a batch's gradients."""
        passes = self.two_passes if self.loss == "batch" else self.one_pass
        pairs = zip(passes.finish(*sums, rows), self.model.trainable_weights)
        return [g if g is None else ops.cast(g, weight.dtype) for g, weight in pairs]

    def _choose(self, data, rows):
        """Return the sums of one pass. With "auto", take two from now on if it must."""
        before = self.take_snapshot() if self.runs_eagerly() and not self.is_settled else None
        one_pass, two_passes = self.one_pass, self.two_passes
        try:
            sums, self.is_settled = one_pass.add_up(data, rows), True
            return sums
        except ValueError as error:
            reason = find_reason(error)
            if reason is None or self.loss != "auto" or one_pass.counts_samples:
                raise
        self.undo(before)
        try:
            two_passes.check_model()
            self.loss = "batch"
            sums = two_passes.add_up(data, rows)
        except NotTwice as error:
            self.loss = "auto"
            if not reason.is_mean:
                raise
            one_pass.counts_samples = True
            warn_once(self.optimizer, _BY_SAMPLES.format(reason.reason, error))
        else:
            print(_TWICE.format(reason.reason))
            return sums
        self.undo(before)
        return one_pass.add_up(data, rows)

    def undo(self, before):
        """Undo a pass that failed, if Python runs the step."""
        if before is not None:
            before.put_back()

    def run(self, phase, given, *arrays, **known):
        """Return `phase(given, *arrays, **known)`, which may overwrite `given`.

        JAX compiles the phase where `known` is known.
        """
        return phase(given, *arrays, **known)

    def scan(self, phase, carry, data, rows, *shared):
        """Run `carry, arrays = phase(carry, slice, *shared, count=..., rows=...)` on each slice.

        Return the last carry and the joined arrays.
        """
        arrays_of_slices = []
        for data_slice, count in self.slices(data, rows):
            carry, arrays = self.run(phase, carry, data_slice, *shared, count=count, rows=rows)
            arrays_of_slices.append(arrays)
        return carry, list(map(ops.concatenate, zip(*arrays_of_slices)))

    def begin_sums(self, _):
        """Return zeros for the sums of gradients and for their totals."""
        weights = self.model.trainable_weights
        types = [sum_dtype(keras.backend.standardize_dtype(w.dtype)) for w in weights]
        zeros = [ops.zeros(w.shape, dtype) for w, dtype in zip(weights, types)]
        return zeros, ops.zeros(2, self.totals_dtype)

    def sum_slices(self, phase, data, rows, *shared):
        """Return the sums of gradients and of totals that `phase` adds with `add`."""
        carry = self.run(self.begin_sums, ())
        (sums, totals), joined = self.scan(phase, carry, data, rows, *shared)
        return self.join(sums, joined), totals

    def add(self, carry, gradients, more=None):
        """Return the sums with a slice's gradients and totals added, and arrays to join."""
        sums, totals = carry
        to_add, to_join = self.split(gradients)
        return (list(map(self.plus, sums, to_add)), self.plus(totals, more)), to_join

    def plus(self, total, gradient):
        """Return the sum of two gradients. Each may be None."""
        if total is None or gradient is None:
            return gradient if total is None else total
        return total + ops.cast(gradient, total.dtype)

    def times(self, gradient, factor):
        return gradient * ops.cast(factor, gradient.dtype)

    def split(self, gradients):
        """Return gradients to add up, and arrays to join."""
        return gradients, []

    def join(self, sums, joined):
        """Return the sums, with the joined arrays."""
        return sums
