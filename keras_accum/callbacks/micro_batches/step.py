"""A train step in slices: the code for all backends."""

import contextlib

import keras
import numpy as np
from keras import ops
from keras.utils import unpack_x_y_sample_weight

from keras_accum.callbacks.base import trains_normalization
from keras_accum.callbacks.micro_batches.halving import Halving
from keras_accum.callbacks.micro_batches.losses import NotInSlices, in_parts, watching_layers
from keras_accum.callbacks.micro_batches.outputs import Outputs
from keras_accum.callbacks.weighing import Weighing
from keras_accum.convert import list_accumulating
from keras_accum.engine.parts import sum_dtype
from keras_accum.engine.pending import OF_SUM
from keras_accum.host import find_own_methods, warn_once
from keras_accum.host.scopes import attribute
from keras_accum.keras3.generators import make_generator
from keras_accum.terms.table import Loss, Way
from keras_accum.terms.term import Divisor

LENGTHS = (
    "MicroBatches slices samples: the first dimension of all arrays in a batch must be the number "
    "of samples. Received first dimensions: {}"
)
_SEVERAL = (
    'MicroBatches("auto") can\'t be used with several replicas or processes: a step that failed in '
    "one of them can't be undone. Give a size. Received: {}"
)
DRAWS = (
    "MicroBatches(loss='batch') runs your model twice on each slice, and {} in the second run. If "
    "a layer draws random numbers, keep `self.seeds = keras.random.SeedGenerator()` in it, and "
    "draw as in `keras.random.uniform(shape, seed=self.seeds)`."
)
_NO_LOSS = (
    "MicroBatches(loss='batch') needs a model that is compiled with a loss, or that has its own "
    "`compute_loss`."
)
_CALLS_MODEL = (
    "MicroBatches(loss='batch') can't be used with a `compute_loss` that calls the model: it gets "
    "the whole batch, which might not fit in memory. Compute the loss from `y_pred`, the joined "
    "outputs of the slices, or leave the callback out."
)
_SAME = 1e-2  # a larger relative distance of two passes isn't rounding, also in half precision
_NORMALIZES = (
    "MicroBatches(loss='batch') can't be used with batch normalization that trains: a sample's "
    "output depends on its slice. Freeze the layer with `trainable=False`, or use another "
    "normalization, such as `torch.nn.GroupNorm` in a module of PyTorch. Received: {!r}"
)
_TWICE = "MicroBatches: {}. So the loss is computed for the whole batch, in a second forward pass."
_BY_SAMPLES = (
    "MicroBatches: {0}. The whole batch would need a second forward pass, which can't be used "
    "here, so slices count by their samples, and your results may differ. The reason: {1}"
)
_OTHERS = "not all terms of the loss are divided by the same number"
_OF_PROCESSES = "each process divides its loss by another number"
_OWN_LOSS = "the model has its own `compute_loss`"


class NotTwice(ValueError):
    """The model can't run twice on a slice with the same result."""


class StepInSlices(Halving):
    """A train step in slices.

    Backends define `compute_gradients(objective, arrays)`, with gradients by weights, gradients by
    arrays and the auxiliary result of `objective`, and `outside`, a scope outside the trace and
    gradients.
    is_first: True until a training's first batch.
    in_slices: True if any step has used slices.
    runs_eagerly: returns True if Python sees the values in a step.
    tried: losses and metrics already tried on samples in this training.
    of_slices: names of metrics that layers update with values of a slice, such as its mean.
    agrees: True once both passes of `loss="batch"` had the same outputs in this training.
    terms: the Terms of the loss in the last slice.
    counts_samples: True to let each slice count by its samples, whatever its loss is divided by.
    """

    terms, counts_samples = (), False

    @staticmethod
    def runs_eagerly():
        return False

    def __init__(self, model, size, loss, library):
        self.model, self.loss, self.own = model, loss, model.train_step
        self.library = library
        self.searches, self.in_slices = size == "auto", False
        self.size = None if self.searches else size

    def check(self):
        """Start a training, or raise an error if the model can't be trained in slices."""
        self.is_first, self.tried, self.optimizer = True, [], self.model.optimizer
        self.agrees, self.of_slices, self.weighing = False, set(), None
        if list_accumulating(self.model):
            self.weighing = Weighing(self.library, self.model, None)
        if self.searches and self.devices() > 1:
            raise ValueError(_SEVERAL.format(self.devices()))
        if self.loss == "batch":
            self._check_two_passes()
        if self.loss != "sample":
            make_generator()

    def _check_two_passes(self):
        if not (self.model.loss or self._has_own_loss()):
            raise NotTwice(_NO_LOSS)
        for layer in self.model._flatten_layers():
            if trains_normalization(layer):
                raise NotTwice(_NORMALIZES.format(layer.name))

    def _has_own_loss(self):
        return bool(find_own_methods(self.model, keras.Model, "compute_loss"))

    def __call__(self, data):
        """Run one step; JAX overrides this to pass the state."""
        rows = self.count_rows(data)
        self.build(data)
        is_whole = self.is_one_slice(rows)
        if not self.model.trainable_weights or (is_whole and not self.searches):
            return self.run_whole(data)
        count = self.count_in_graph(data) if rows is None else rows
        self.apply(
            self._differentiate_whole(data, count) if is_whole else self.gradients(data, count)
        )
        return self.model.get_metrics_result()

    def run_whole(self, *arguments):
        """Run the model's own train step on a batch that is one slice."""
        with self._weighed():
            return self.own(*arguments)

    def _differentiate_whole(self, data, count):
        with self._weighed():
            return self.differentiate(data, count)[0]

    @contextlib.contextmanager
    def _weighed(self):
        """Scope in which `compute_loss` weighs the batch for optimizers that accumulate."""
        with contextlib.ExitStack() as scope:
            if self.weighing is not None:
                self.weighing.install(scope)
            yield

    def end(self):
        """End a training."""

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

    def scan(self, function, carry, data, rows):
        """Call `carry, arrays = function(carry, slice, count)` on each slice; join the arrays."""
        found = []
        for part, count in self.slices(data, rows):
            carry, arrays = function(carry, part, count)
            found.append(arrays)
        return carry, list(map(ops.concatenate, zip(*found)))

    def slices(self, data, rows):
        """Yield slices that differ by at most one sample: a single one may be too few."""
        number = -(-rows // self.size)
        starts = [-(-i * rows // number) for i in range(number + 1)]
        for start, stop in zip(starts, starts[1:]):
            yield self.part(data, start, stop - start), stop - start

    def part(self, data, start, count):
        stop = start + count
        return keras.tree.map_structure(lambda a: None if a is None else a[start:stop], data)

    def called(self):
        """Return what Keras's train step calls: the model, or a wrapper around it."""
        return self.model

    def call(self, x):
        called = self.called()
        return called(x, training=True) if self.model._call_has_training_arg else called(x)

    def list_penalties(self, share):
        """Return a slice's shares in the losses added by layers."""
        losses = [ops.sum(ops.cast(loss, keras.backend.floatx())) for loss in self.model.losses]
        return [_share(loss, share) for loss in losses]

    def track_loss(self, loss, rows):
        self.model._loss_tracker.update_state(loss * self.replicas(), sample_weight=rows)

    def track_metrics(self, y, y_pred, sample_weight):
        """Update the compiled metrics with a slice or batch."""
        # Not `compute_metrics`: its results would be reduced over processes in each slice.
        if self.model._compile_metrics is not None:
            self.model._compile_metrics.update_state(y, y_pred, sample_weight)

    def gradients(self, data, rows):
        """Return a batch's gradients, updating all variables but the weights."""
        self.in_slices = True
        way = self._in_two_passes if self.loss == "batch" else self._try_one_pass
        pairs = zip(way(data, rows), self.model.trainable_weights)
        return [g if g is None else ops.cast(g, weight.dtype) for g, weight in pairs]

    def _try_one_pass(self, data, rows):
        """Add up gradients in one pass. With "auto", take two from now on if that isn't exact."""
        before = self.take_snapshot() if self.runs_eagerly() and not self.agrees else None
        try:
            return self._in_one_pass(data, rows)
        except NotInSlices as error:
            if self.loss != "auto" or self.counts_samples:
                raise
            reason, self.terms = error, ()
        self.put_back(before)
        try:
            self._check_two_passes()
            self.loss = "batch"
            sums = self._in_two_passes(data, rows)
        except NotTwice as error:
            self.loss = "auto"
            if not reason.is_mean:
                raise
            self.counts_samples = True
            warn_once(self.optimizer, _BY_SAMPLES.format(reason.reason, error))
        else:
            print(_TWICE.format(reason.reason))
            return sums
        self.put_back(before)
        return self._in_one_pass(data, rows)

    def put_back(self, before):
        """Undo a pass that failed, if Python runs the step."""
        if before is not None:
            self.restore(before)

    def differentiate(self, data, count, rows=None):
        """Return the gradients for a slice's part in a batch of `rows` samples; update the metrics.

        And its weight with the weighted loss, or None if it counts by its samples.
        """
        x, y, sample_weight = unpack_x_y_sample_weight(data)

        def objective(_):
            y_pred = self.call(x)
            loss = self.model._compute_loss(x, y, y_pred, sample_weight, training=True)
            weight = self._find_weight(count)
            share = (1.0 if rows is None else count / rows) if weight is None else weight
            # Scale the loss, not the gradient, so that XLA adds sparse rows in place.
            return self.optimizer.scale_loss(_share(loss, share)), (loss, y_pred, weight)

        gradients, _, (loss, y_pred, weight) = self.compute_gradients(objective)
        if weight is None:
            self.track_loss(loss, count)
        self.track_metrics(y, y_pred, sample_weight)
        return gradients, None if weight is None else ops.stack([weight, weight * loss])

    def _find_weight(self, count):
        """Return what the loss of a slice is divided by, None if samples say as much."""
        if not self.is_weighted:
            return None
        adds = self.library.added_losses(self.model) > 0
        if self.called() is not self.model:  # it adds up gradients of processes in the last slice
            raise NotInSlices(_OF_PROCESSES)
        if Loss(self.terms, count, adds).decide().way is not Way.BY_DIVISOR:
            raise NotInSlices(_OTHERS)
        weight = ops.cast(self.terms[0].count("float32"), "float32")
        return ops.stop_gradient(ops.where(weight == 0, self.library.least_weight, weight))

    @property
    def is_weighted(self):
        """True if slices are weighed by what their loss is divided by."""
        terms = [term for term in self.terms if term.divisor is not Divisor.NONE_SUM]
        return any(term.depends_on_data for term in terms)

    def _in_one_pass(self, data, rows):
        """Add up the gradients of the slices' parts in the batch's loss."""
        if self._has_own_loss() and not self.counts_samples:
            raise NotInSlices(_OWN_LOSS)

        def compute(data, count):
            with in_parts(self, count, rows):
                return self.differentiate(data, count, rows)

        sums, totals = self.add_up(compute, data, rows)
        weight = None
        if self.is_weighted:
            weight, loss = totals[0], totals[1]
            self.track_loss(loss / weight, rows)
            sums = [g if g is None else self.times(g, 1 / weight) for g in sums]
        self._weigh_batch(rows, weight)
        self.terms, self.agrees = (), True
        return sums

    def _weigh_batch(self, rows, weight):
        """Tell accumulating optimizers what the loss of the whole batch is divided by."""
        if self.weighing is not None:
            way = Loss(self.terms, rows).decide().way
            if way is Way.BY_DIVISOR and weight is None:
                weight = self.terms[0].key * rows
            self.weighing.give(OF_SUM if way is Way.AS_SUM else rows if weight is None else weight)

    def _in_two_passes(self, data, rows):
        """Add up gradients by the chain rule, from the loss on the joined outputs."""
        before = self.take_snapshot()
        outputs = self._join_outputs(data, rows)
        self.restore(before)  # so that the second pass draws the same numbers
        of_loss, by_outputs, by_penalties = self._differentiate_loss(data, rows, outputs)
        expected = outputs.arrays if self.runs_eagerly() and not self.agrees else []
        del outputs  # to save memory

        def compute(data, count):
            return self._differentiate_outputs(*data, by_penalties, count / rows), None

        sums, _ = self.add_up(compute, (data, by_outputs, expected), rows)
        self.agrees = True
        return list(map(self.plus, sums, of_loss))

    def _join_outputs(self, data, rows):
        """Run the model on all slices. Return its outputs and the sums of penalties."""
        outputs = Outputs()

        def forward(_, data, count):
            with watching_layers(self, count):
                y_pred = self.call(unpack_x_y_sample_weight(data)[0])
            return (), outputs.flatten(y_pred, self.list_penalties(count / rows), count)

        outputs.join(self.scan(forward, (), data, rows)[1])
        return outputs

    def _differentiate_loss(self, data, rows, outputs):
        """Return the loss's gradients by weights, outputs and penalties; update the metrics.

        The loss may read weights, such as a temperature. It may also leave out penalties.
        """
        x, y, sample_weight = unpack_x_y_sample_weight(data)

        def objective(arrays):
            y_pred, penalties = outputs.pack(arrays)
            given = attribute(self.model, "_losses_override", penalties)
            with self._weighed(), given, attribute(self.model, "call", _refuse_call):
                loss = self.model._compute_loss(x, y, y_pred, sample_weight, training=True)
            return self.optimizer.scale_loss(loss), (loss, y_pred)

        arrays = [*outputs.arrays, *outputs.penalties]
        of_loss, by_arrays, (loss, y_pred) = self.compute_gradients(objective, arrays)
        self.track_loss(loss, rows)
        self.track_metrics(y, y_pred, sample_weight)
        count = len(outputs.arrays)
        return of_loss, by_arrays[:count], by_arrays[count:]

    def _differentiate_outputs(self, data, by_outputs, expected, by_penalties, share):
        """Return a slice's gradients, from those by its outputs and by all slices' penalties."""

        def objective(_):
            """Return a value with these gradients with respect to outputs and penalties."""
            arrays = keras.tree.flatten(self.call(unpack_x_y_sample_weight(data)[0]))
            _compare(arrays, expected)
            pairs = zip([*arrays, *self.list_penalties(share)], [*by_outputs, *by_penalties])
            floatx = keras.backend.floatx()
            products = [
                ops.sum(ops.cast(array, floatx) * ops.cast(g, floatx))
                for array, g in pairs
                if g is not None
            ]
            return sum(products), None

        return self.compute_gradients(objective)[0]

    def add_up(self, compute, data, rows):
        """Return the sums of what `compute` returns for slices: gradients, and totals if any.

        A sum is None for a variable without a gradient.
        """
        weights = self.model.trainable_weights
        missing = set(range(len(weights)))

        def add(carry, data, count):
            (sums, totals), (gradients, more) = carry, compute(data, count)
            found, parts = self.split(gradients)
            missing.intersection_update(i for i, g in enumerate(found) if g is None)
            return (list(map(self.plus, sums, found)), self.plus(totals, more)), parts

        types = [sum_dtype(keras.backend.standardize_dtype(w.dtype)) for w in weights]
        zeros = [ops.zeros(w.shape, dtype) for w, dtype in zip(weights, types)]
        (sums, totals), parts = self.scan(add, (zeros, ops.zeros(2)), data, rows)
        sums = self.join([None if i in missing else s for i, s in enumerate(sums)], parts)
        return sums, totals

    def plus(self, total, gradient):
        """Return the sum of two gradients, each may be None."""
        if total is None or gradient is None:
            return gradient if total is None else total
        return total + ops.cast(gradient, total.dtype)

    def times(self, gradient, factor):
        return gradient * ops.cast(factor, gradient.dtype)

    def split(self, gradients):
        """Return gradients to add up, and arrays to join."""
        return gradients, []

    def join(self, sums, parts):
        """Return the sums, with the joined arrays."""
        return sums


def _refuse_call(*arguments, **keywords):
    raise ValueError(_CALLS_MODEL)


def _compare(arrays, expected):
    """Raise a ValueError if the second pass has other outputs than the first."""
    for array, first in zip(arrays, expected):
        if "float" in keras.backend.standardize_dtype(array.dtype):
            array, first = (ops.convert_to_numpy(a).astype("float64") for a in (array, first))
            if np.linalg.norm(array - first) > _SAME * np.linalg.norm(first):
                raise NotTwice(DRAWS.format("its outputs differ"))


def _share(loss, share):
    return ops.convert_to_tensor(share, loss.dtype) * loss
