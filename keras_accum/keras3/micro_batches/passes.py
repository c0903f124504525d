"""Two ways to a batch's gradients in slices: in one pass, or by the loss of the whole batch."""

import contextlib

import keras
import numpy as np
from keras import ops
from keras.utils import unpack_x_y_sample_weight

from keras_accum.fit.weighed_logs import WeighedLogs
from keras_accum.host import find_own_methods, list_items
from keras_accum.host.layers import trains_normalization
from keras_accum.host.scopes import attribute
from keras_accum.keras3.micro_batches.metrics import (
    NotInSlices,
    copy_logs,
    log_as_one_batch,
    watching_layers,
    watching_metrics,
)
from keras_accum.keras3.micro_batches.outputs import Outputs
from keras_accum.terms.table import Way
from keras_accum.terms.tap import Tap
from keras_accum.terms.term import Divisor, read_shape

_OF_LOSS = "the loss {!r} {}"
_OF_USER = "the loss {!r} is your own code, which may compare samples"
_UNKNOWN_DIVISOR = "nothing tells what the loss {!r} is divided by"
_OTHERS = "not all terms of the loss are divided by the same number"
_OF_PROCESSES = "each process divides its loss by another number"
_OWN_LOSS = "the model has its own `compute_loss`"
DRAWS = (
    "MicroBatches(loss='batch') runs your model twice on each slice, and {} in the second run. If "
    "a layer draws random numbers, keep `self.seeds = keras.random.SeedGenerator()` in it, and "
    "draw as in `keras.random.uniform(shape, seed=self.seeds)`."
)
_ADDED_SUM = (
    "MicroBatches can't be used with a loss of several values given to `add_loss`, of which Keras "
    "takes the sum: give `add_loss` their mean."
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
_KEPT = (
    "MicroBatches(loss='batch') can't be used with a loss that reads `{}`, which the layer {!r} "
    "keeps when it is called: it is of the last slice. Return it as an output of the model. If "
    "each value of the loss is of one sample, write MicroBatches(size, loss='sample') instead."
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
    terms: the Terms of the loss in a slice.
    count, share: a slice's number of samples, and its share in those of the batch.
    is_weighted: True if samples don't say what a slice's loss is divided by.
    counts_samples: True to let each slice count by its samples, whatever its loss is divided by.
    """

    terms, count, share = (), None, 1.0
    is_weighted = counts_samples = False

    def __init__(self, step):
        self.step = step
        self._tap = Tap(step.host, step.model, change=self._divide_sum)
        self._logs = WeighedLogs(step.host, step.model, self._find_weight_of_logs)

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
        self._tap.reset()  # Ctrl-C may have ended an earlier slice
        with contextlib.ExitStack() as scope:
            terms = scope.enter_context(self._tap.scope())
            facts = {"terms": terms, "count": count, "share": count / rows}
            for name, value in facts.items():  # not kept: they may be of a trace
                scope.enter_context(attribute(self, name, value))
            self._logs.install(scope)
            scope.enter_context(watching_metrics(self.step, count))
            gradients, totals = self.differentiate(data, count)
        return self.step.add(carry, gradients, totals)

    def finish(self, sums, totals, logs, rows):
        """Return the gradients of a batch."""
        step = self.step
        log_as_one_batch(step.model, logs, rows)
        if self.is_weighted:
            share, loss = totals[0], totals[1]  # a tensor of TensorFlow can't be unpacked
            step.track_loss(loss / share, rows)
            sums = [g if g is None else step.times(g, 1 / share) for g in sums]
        return sums

    def differentiate(self, data, count):
        """Return the gradients of a slice times its share, or of a batch; update the metrics.

        Also return the totals to add up, if any: the slice's share, and the loss times it.
        """
        step = self.step
        x, y, sample_weight = unpack_x_y_sample_weight(data)

        def objective(_):
            y_pred = step.call(x)
            # A copy, because Keras on PyTorch multiplies it by a mask in place.
            weights = keras.tree.map_structure(_copy, sample_weight)
            loss = step.model._compute_loss(x, y, y_pred, weights, training=True)
            share = self._find_share()
            # Scale the loss, not the gradient, so that XLA adds sparse rows in place.
            scaled = ops.convert_to_tensor(share, loss.dtype) * loss
            return step.optimizer.scale_loss(scaled), (loss, y_pred, share)

        gradients, _, (loss, y_pred, share) = step.compute_gradients(objective)
        step.track_metrics(y, y_pred, sample_weight)
        if not self.is_weighted:
            step.track_loss(loss, count)
            return gradients, None
        share, loss = (ops.cast(value, step.totals_dtype) for value in (share, loss))
        return gradients, ops.stack([share, share * loss])

    def _divide_sum(self, term, result):
        """Return a loss on a slice. Its mean over slices, by their samples, is the batch's loss."""
        return result / ops.cast(self.share, result.dtype) if _is_sum(term) else result

    def _find_weight_of_logs(self, is_whole):
        """Return what a slice counts in the log of an output's loss, whose call was the last."""
        if is_whole:
            return None  # `track_loss` gives it
        term = self.terms[-1]
        by_divisor = term.is_mean and not self.counts_samples
        return self.step.reader.read_divisor(term) if by_divisor else self.count

    def _find_share(self):
        """Return a slice's share in the batch's loss."""
        step, reader, share = self.step, self.step.reader, self.share
        self.is_weighted = False
        if self.count is None:  # a whole batch
            return share
        loss = reader.describe(self.terms)
        if loss.adds_sums:
            raise ValueError(_ADDED_SUM)
        if self.counts_samples or not loss.terms:
            return share
        own = [term.name for term in loss.terms if term.is_own]
        if own and step.loss == "auto":  # "sample" is the user's word
            raise NotInSlices(_OF_USER.format(own[0]))
        others = [term for term in loss.terms if not _is_sum(term)]
        if others and loss._replace(terms=others).decide().way is not Way.BY_DIVISOR:
            raise _explain(others)
        self.is_weighted = any(term.depends_on_data for term in others)
        if not self.is_weighted:
            return share
        if len(others) < len(loss.terms):
            raise NotInSlices(_OTHERS)
        # A wrapper for several processes reduces sums in the last slice.
        if step.called() is not step.model:
            raise NotInSlices(_OF_PROCESSES)
        # Not the divisor itself: half precision would overflow sooner.
        divisor, size = reader.read_divisor(others[0]), ops.size(others[0].values)
        share, divisor, size = (ops.cast(v, step.totals_dtype) for v in (share, divisor, size))
        return share * divisor / size


def _copy(array):
    return None if array is None else ops.copy(array)


def _is_sum(term):
    # Without a reduction, it has several values, of which not every backend takes the gradient.
    return term.divisor is Divisor.NOTHING and term.loss.reduction == "sum"


def _explain(terms):
    """Return a NotInSlices with the first term for which slices can't be weighed."""
    for term in terms:
        if term.divisor is Divisor.COMPARES:
            return NotInSlices(_OF_LOSS.format(term.name, term.divisor.value), is_mean=False)
        if not term.is_mean:
            return NotInSlices(_UNKNOWN_DIVISOR.format(term.name))
    return NotInSlices(_OTHERS)


class NotTwice(ValueError):
    """The model can't run twice on a slice with the same result."""


class TwoPasses:
    """Computes the loss of the whole batch, from the outputs of a pass without gradients.

    step: the StepInSlices.
    outputs: the structure of the model's outputs.
    agrees: True once both passes had the same outputs in this training.
    """

    def __init__(self, step):
        self.step, self.outputs, self.agrees = step, Outputs(), False

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
        before, kept = step.take_snapshot(), None if self.agrees else _list_kept(step.model)
        _, arrays = step.scan(self.forward, (), data, rows)
        before.put_back()  # so that the second pass draws the same numbers
        compares = step.runs_eagerly() and not self.agrees
        expected = arrays[: self.outputs.count] if compares else []
        with _hiding_kept(step.model, kept):
            of_loss, by_outputs, by_penalties = step.run(
                self.differentiate_loss, (), arrays, data, rows=rows
            )
        del arrays  # to save memory
        slices = data, by_outputs, expected
        sums, _ = step.sum_slices(self.add, slices, rows, by_penalties)
        self.agrees = True
        return sums, of_loss

    def forward(self, _, data, count, rows):
        """Return a slice's outputs, masks and penalties."""
        with watching_layers(self.step, count):
            y_pred = self.step.call(unpack_x_y_sample_weight(data)[0])
        if any(map(read_shape, self.step.host.list_added_losses(self.step.model))):
            raise ValueError(_ADDED_SUM)
        return (), self.outputs.flatten(y_pred, self._list_penalties(count / rows), count)

    def add(self, carry, data, by_penalties, count, rows):
        """Add the gradients of a slice."""
        gradients = self._differentiate_outputs(*data, by_penalties, count / rows)
        return self.step.add(carry, gradients)

    def finish(self, sums, of_loss, rows):
        """Return the gradients of a batch."""
        return list(map(self.step.plus, sums, of_loss))

    def _list_penalties(self, share):
        """Return a slice's shares in the losses added by layers."""
        floatx, losses = keras.backend.floatx(), self.step.model.losses
        return [ops.convert_to_tensor(share, floatx) * ops.sum(ops.cast(e, floatx)) for e in losses]

    def differentiate_loss(self, _, arrays, data, rows):
        """Return the loss's gradients by weights, outputs and penalties; update the metrics.

        The loss may read weights, such as a temperature. It may also leave out penalties.
        """
        step, model = self.step, self.step.model
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        arrays, masks = self.outputs.split(arrays)

        def objective(arrays):
            y_pred, penalties = self.outputs.pack(arrays, masks)
            overridden = attribute(model, "_losses_override", penalties)
            with overridden, attribute(model, "call", _refuse_call):
                loss = model._compute_loss(x, y, y_pred, sample_weight, training=True)
            return step.optimizer.scale_loss(loss), (loss, y_pred)

        of_loss, by_arrays, (loss, y_pred) = step.compute_gradients(objective, arrays)
        step.track_loss(loss, rows)
        step.track_metrics(y, y_pred, sample_weight)
        count = self.outputs.count
        return of_loss, by_arrays[:count], by_arrays[count:]

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


def _list_kept(model):
    """Return {(layer, attribute): value} of the tensors that layers have as attributes."""
    attributes = [(layer, name) for layer in model._flatten_layers() for name in vars(layer)]
    values = {(layer, name): vars(layer)[name] for layer, name in attributes}
    return {key: v for key, v in values.items() if any(map(ops.is_tensor, list_items(v)))}


@contextlib.contextmanager
def _hiding_kept(model, before):
    """Scope without the tensors that layers have kept since `before`; None hides nothing.

    A loss that reads one would be computed from the last slice, in silence if its shape fits.
    """
    now = {} if before is None else _list_kept(model)
    kept = {key: value for key, value in now.items() if value is not before.get(key)}
    for layer, name in kept:
        del vars(layer)[name]
    try:
        yield
    except AttributeError as error:
        for layer, name in kept:
            if f"'{name}'" in str(error):
                raise ValueError(_KEPT.format(name, layer.name)) from error
        raise
    finally:
        for (layer, name), value in kept.items():
            vars(layer)[name] = value


def _refuse_call(*arguments, **keywords):
    raise ValueError(_CALLS_MODEL)


def _compare(arrays, expected):
    """Raise NotTwice if the second pass has other outputs than the first."""
    for array, first in zip(arrays, expected):
        if "float" in keras.backend.standardize_dtype(array.dtype):
            array, first = (ops.convert_to_numpy(a).astype("float64") for a in (array, first))
            if np.linalg.norm(array - first) > _SAME * np.linalg.norm(first):
                raise NotTwice(DRAWS.format("its outputs differ"))
