"""Two ways to a batch's gradients in slices: in one pass, or by the loss of the whole batch."""

import keras
import numpy as np
from keras import ops
from keras.utils import unpack_x_y_sample_weight

from keras_accum.engine.pending import OF_SUM
from keras_accum.host import find_own_methods
from keras_accum.host.layers import trains_normalization
from keras_accum.host.scopes import attribute
from keras_accum.keras3.micro_batches.losses import (
    NotInSlices,
    copy_logs,
    is_weighted,
    log_as_one_batch,
    scaling_losses,
    watching_layers,
)
from keras_accum.keras3.micro_batches.outputs import Outputs
from keras_accum.terms.table import Way

_OTHERS = "not all terms of the loss are divided by the same number"
_OF_PROCESSES = "each process divides its loss by another number"
_OWN_LOSS = "the model has its own `compute_loss`"
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
_NORMALIZES = (
    "MicroBatches(loss='batch') can't be used with batch normalization that trains: a sample's "
    "output depends on its slice. Freeze the layer with `trainable=False`, or use another "
    "normalization, such as `torch.nn.GroupNorm` in a module of PyTorch. Received: {!r}"
)
_SAME = 1e-2  # a larger relative distance of two passes isn't rounding, even in half precision


def has_own_loss(model):
    return bool(find_own_methods(model, keras.Model, "compute_loss"))


class OnePass:
    """Adds up the gradients of slices, each weighed by what its loss is divided by.

    step: the StepInSlices.
    terms: the Terms of the loss in the last slice.
    decision: what to do with them, for optimizers that accumulate and for masks.
    is_weighted: True if samples don't say what a slice's loss is divided by.
    counts_samples: True to let each slice count by its samples, whatever its loss is divided by.
    """

    terms, decision, is_weighted, counts_samples = (), None, False, False

    def __init__(self, step):
        self.step = step

    def add_up(self, data, rows):
        """Return the sums for `finish`, or raise NotInSlices."""
        step = self.step
        if has_own_loss(step.model) and not self.counts_samples:
            raise NotInSlices(_OWN_LOSS)
        logs = step.run(self.copy_logs, ())
        return (*step.sum_slices(self.add, data, rows), logs)

    def copy_logs(self, _):
        return copy_logs(self.step.model)

    def add(self, carry, data, count, rows):
        """Add a slice's share in the gradients of a batch."""
        with scaling_losses(self, count, rows):
            gradients, totals = self.differentiate(data, count, rows)
        return self.step.add(carry, gradients, totals)

    def finish(self, sums, totals, logs, rows):
        """Return the gradients of a batch."""
        step = self.step
        log_as_one_batch(step.model, logs, rows)
        if self.is_weighted:
            share, loss = totals[0], totals[1]  # a tensor of TensorFlow can't be unpacked
            step.track_loss(loss / share, rows)
            sums = [g if g is None else step.times(g, 1 / share) for g in sums]
        if step.weighing is not None:
            step.weighing.give(self._find_divisor(totals, rows))
        return sums

    def differentiate(self, data, count, rows=None):
        """Return a slice's share of the gradients of `rows` samples; update the metrics.

        Also return the totals to add up, if any: the slice's share, the loss times it, and the
        divisor.
        """
        step = self.step
        x, y, sample_weight = unpack_x_y_sample_weight(data)

        def objective(_):
            y_pred = step.call(x)
            loss = step.model._compute_loss(x, y, y_pred, sample_weight, training=True)
            share, divisor = self._find_share(count, count if rows is None else rows)
            # Scale the loss, not the gradient, so that XLA adds sparse rows in place.
            scaled = ops.convert_to_tensor(share, loss.dtype) * loss
            return step.optimizer.scale_loss(scaled), (loss, y_pred, share, divisor)

        gradients, _, (loss, y_pred, share, divisor) = step.compute_gradients(objective)
        if not self.is_weighted:
            step.track_loss(loss, count)
        step.track_metrics(y, y_pred, sample_weight)
        if divisor is None:
            return gradients, None
        share, loss, divisor = (ops.cast(v, step.totals_dtype) for v in (share, loss, divisor))
        return gradients, ops.stack([share, share * loss, divisor])

    def _find_share(self, count, rows):
        """Return a slice's share in the batch's loss, and its divisor if that is needed."""
        step, share = self.step, count / rows
        self.is_weighted = any(is_weighted(term) for term in self.terms if term.is_in_loss)
        self.decision = None
        if not self.terms or not (self.is_weighted or step.weighing is not None):
            return share, None
        described = step.reader.describe(self.terms)
        self.decision = described.decide()
        is_divided = self.decision.way is Way.BY_DIVISOR
        # A wrapper for several processes reduces sums in the last slice.
        if self.is_weighted and step.called() is not step.model:
            raise NotInSlices(_OF_PROCESSES)
        if self.is_weighted and not is_divided:
            raise NotInSlices(_OTHERS)
        dtype, reader = step.totals_dtype, step.reader
        term = described.terms[0] if described.terms else None
        if is_divided:
            divisor = ops.cast(reader.read_divisor(term), dtype)
        else:
            divisor = reader.not_zero(ops.cast(count, dtype))
        if self.is_weighted:  # not the divisor itself: half precision would overflow sooner
            share = ops.cast(share, dtype) * divisor / ops.cast(ops.size(term.values), dtype)
        return share, ops.stop_gradient(divisor)

    def _find_divisor(self, totals, rows):
        """Return what the batch's loss is divided by, for optimizers that accumulate."""
        if self.decision is None:
            return rows
        self.step.weighing.note_problems(self.decision)
        return OF_SUM if self.decision.way is Way.AS_SUM else totals[2]


class NotTwice(ValueError):
    """The model can't run twice on a slice with the same result."""


class TwoPasses:
    """Computes the loss of the whole batch, from the outputs of a pass without gradients.

    step: the StepInSlices.
    outputs: the structure of the model's outputs.
    agrees: True once both passes had the same outputs in this training.
    is_sum: True if the batch's loss is divided by nothing, in a window.
    """

    def __init__(self, step):
        self.step, self.outputs, self.agrees, self.is_sum = step, Outputs(), False, False

    def check_model(self):
        """Raise NotTwice if the model can't take two passes."""
        model = self.step.model
        if not (model.loss or has_own_loss(model)):
            raise NotTwice(_NO_LOSS)
        for layer in model._flatten_layers():
            if trains_normalization(layer):
                raise NotTwice(_NORMALIZES.format(layer.name))

    def add_up(self, data, rows):
        """Return the sums for `finish`, by the chain rule, or raise NotTwice."""
        step = self.step
        before = step.take_snapshot()
        _, arrays = step.scan(self.forward, (), data, rows)
        before.put_back()  # so that the second pass draws the same numbers
        compares = step.runs_eagerly() and not self.agrees
        expected = arrays[: self.outputs.count] if compares else []
        of_loss, by_outputs, by_penalties, weight = step.run(
            self.differentiate_loss, (), arrays, data, rows=rows
        )
        del arrays  # to save memory
        slices = data, by_outputs, expected
        sums, _ = step.sum_slices(self.add, slices, rows, by_penalties)
        self.agrees = True
        return sums, of_loss, weight

    def forward(self, _, data, count, rows):
        """Return a slice's outputs, masks and penalties."""
        with watching_layers(self.step, count):
            y_pred = self.step.call(unpack_x_y_sample_weight(data)[0])
        return (), self.outputs.flatten(y_pred, self._list_penalties(count / rows), count)

    def add(self, carry, data, by_penalties, count, rows):
        """Add the gradients of a slice."""
        gradients = self._differentiate_outputs(*data, by_penalties, count / rows)
        return self.step.add(carry, gradients)

    def finish(self, sums, of_loss, weight, rows):
        """Return the gradients of a batch."""
        if self.step.weighing is not None:
            self.step.weighing.give(OF_SUM if self.is_sum else weight)
        return list(map(self.step.plus, sums, of_loss))

    def _list_penalties(self, share):
        """Return a slice's shares in the losses added by layers."""
        floatx, losses = keras.backend.floatx(), self.step.model.losses
        return [ops.convert_to_tensor(share, floatx) * ops.sum(ops.cast(e, floatx)) for e in losses]

    def differentiate_loss(self, _, arrays, data, rows):
        """Return the loss's gradients by weights, outputs and penalties; update the metrics.

        Also return what the batch counts in a window, None without one and for a sum. The loss may
        read weights, such as a temperature. It may also leave out penalties.
        """
        step, model = self.step, self.step.model
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        arrays, masks = self.outputs.split(arrays)

        def objective(arrays):
            y_pred, penalties = self.outputs.pack(arrays, masks)
            overridden = attribute(model, "_losses_override", penalties)
            with step.weighed(), overridden, attribute(model, "call", _refuse_call):
                loss = model._compute_loss(x, y, y_pred, sample_weight, training=True)
            return step.optimizer.scale_loss(loss), (loss, y_pred)

        of_loss, by_arrays, (loss, y_pred) = step.compute_gradients(objective, arrays)
        step.track_loss(loss, rows)
        step.track_metrics(y, y_pred, sample_weight)
        weight = None if step.weighing is None else step.weighing.withdraw()
        self.is_sum = weight is OF_SUM
        count = self.outputs.count
        return of_loss, by_arrays[:count], by_arrays[count:], None if self.is_sum else weight

    def _differentiate_outputs(self, data, by_outputs, expected, by_penalties, share):
        """Return a slice's gradients, from those by its outputs and by all slices' penalties."""

        def objective(_):
            """Return a value with these gradients with respect to outputs and penalties."""
            arrays = keras.tree.flatten(self.step.call(unpack_x_y_sample_weight(data)[0]))
            _compare(arrays, expected)
            pairs = zip([*arrays, *self._list_penalties(share)], [*by_outputs, *by_penalties])
            floatx = keras.backend.floatx()
            products = [
                ops.sum(ops.cast(array, floatx) * ops.cast(g, floatx))
                for array, g in pairs
                if g is not None
            ]
            return sum(products), None

        return self.step.compute_gradients(objective)[0]


def _refuse_call(*arguments, **keywords):
    raise ValueError(_CALLS_MODEL)


def _compare(arrays, expected):
    """Raise NotTwice if the second pass has other outputs than the first."""
    for array, first in zip(arrays, expected):
        if "float" in keras.backend.standardize_dtype(array.dtype):
            array, first = (ops.convert_to_numpy(a).astype("float64") for a in (array, first))
            if np.linalg.norm(array - first) > _SAME * np.linalg.norm(first):
                raise NotTwice(DRAWS.format("its outputs differ"))
