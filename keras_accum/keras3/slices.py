"""Train steps in slices on Keras 3: what the backends share."""

import contextlib
import functools

import keras

from keras_accum.keras3.masks import mask_of, masked
from keras_accum.train_functions import StepInSlices


class _Sum(keras.losses.Loss):
    """The sum of values, as Keras weights and masks the values of a loss."""

    def __init__(self, dtype):
        super().__init__(reduction="sum", dtype=dtype)

    def call(self, y_true, y_pred):
        return y_pred


@contextlib.contextmanager
def _attribute(owner, name, value):
    """A scope in which an object has this attribute."""
    attributes = vars(owner)
    kept = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(kept)


def _per_sample(values, what, rows):
    """Return the values of a loss or a metric, after checking that each sample has its own."""
    known = rows if isinstance(rows, int) else None
    if not len(values.shape) or None not in (known, values.shape[0]) and values.shape[0] != known:
        raise ValueError(
            f"MicroBatches needs one value per sample of {what}, or one per element: what is made "
            "of the values of several samples can't be added up over slices. Return the values and "
            "let Keras reduce them, or use MicroBatches(size, loss='batch'). Received: values of "
            f"shape {tuple(values.shape)}"
        )
    return values


def _couples(loss):
    """Whether a loss of Keras compares the samples of a batch with each other."""
    circle = getattr(keras.losses, "circle", None)
    return circle is not None and getattr(loss, "fn", None) is circle


class Losses:
    """The losses of a model on a slice, as parts of the losses of the whole batch."""

    def __init__(self, model, replicas):
        self._model, self._replicas = model, replicas

    @contextlib.contextmanager
    def as_parts(self, rows, of, divisors):
        """A scope in which the mean of slices, weighted by samples, is the loss of the batch.

        A slice has `rows` of the samples `of` the batch. `divisors` has, for each loss, what the
        loss of the batch is divided by; None if this is in proportion to the samples.
        """
        share = rows / of

        def part(i, loss, y_true, y_pred, sample_weight=None):
            value, values, mask, _ = self._of_slice(loss, y_true, y_pred, sample_weight, rows)
            if loss.reduction == "sum":
                return value / keras.ops.cast(share, value.dtype)
            if divisors[i] is None:
                return value
            weight = sample_weight if sample_weight is None else keras.ops.copy(sample_weight)
            values = values if mask is None else masked(values, mask)
            total = _Sum(loss.dtype)(values, values, weight)
            divisor = keras.ops.cast(divisors[i], total.dtype)
            value = keras.ops.divide_no_nan(total, divisor) / keras.ops.cast(share, total.dtype)
            return value / self._replicas()

        def weighted(update_state, value, sample_weight=None):
            # Keras weights a batch by its samples if it knows how many they are.
            update_state(value, sample_weight=rows if isinstance(of, int) else share)

        metrics = getattr(self._model._compile_loss, "metrics", [])
        with self._in_place_of_losses(part), self._metrics_checked(rows):
            with contextlib.ExitStack() as stack:
                for metric in metrics:
                    update = functools.partial(weighted, metric.update_state)
                    stack.enter_context(_attribute(metric, "update_state", update))
                yield

    def divisors(self, x, y, sample_weight, rows, mapping=()):
        """Return what each loss of a slice is divided by, None if in proportion to the samples.

        The model's variables keep their values.
        """
        found = []

        def count(i, loss, y_true, y_pred, sample_weight=None):
            value, _, _, divisor = self._of_slice(loss, y_true, y_pred, sample_weight, rows)
            found.append(divisor)
            return value

        scope = keras.StatelessScope(state_mapping=mapping)
        with scope, self._in_place_of_losses(count):
            y_pred = call(self._model, x, training=False)
            if self._model._compile_loss is not None:
                self._model._compile_loss(y, y_pred, sample_weight)
        return found

    def _of_slice(self, loss, y_true, y_pred, sample_weight, rows):
        """Return the value of a loss, its values before the reduction, their mask, the divisor."""
        name = getattr(loss, "name", type(loss).__name__)
        if type(loss).__call__ is not keras.Loss.__call__ or loss.reduction in (None, "none"):
            raise ValueError(
                f"MicroBatches can't tell what the loss {name!r} is divided by. Give it a "
                "`reduction` and leave its `__call__` to Keras, or use "
                "MicroBatches(size, loss='batch')."
            )
        if _couples(loss):
            raise ValueError(
                f"MicroBatches can't be used with the loss {name!r}, which compares the samples of "
                "a batch with each other. Use MicroBatches(size, loss='batch')."
            )
        own, kept = loss.call, []
        if sample_weight is not None:  # Keras multiplies it by the mask, on PyTorch in place
            sample_weight = keras.ops.copy(sample_weight)

        def watched(*arguments):
            kept.append(_per_sample(own(*arguments), f"the loss {name!r}", rows))
            return kept[-1]

        with _attribute(loss, "call", watched):
            value = loss(y_true, y_pred, sample_weight)
        masks = [mask for mask in (mask_of(y_pred), mask_of(kept[-1])) if mask is not None]
        mask = functools.reduce(keras.ops.logical_and, masks) if masks else None
        return value, kept[-1], mask, self._divisor(loss, sample_weight, mask)

    @staticmethod
    def _divisor(loss, sample_weight, mask):
        if loss.reduction == "mean_with_sample_weight" and sample_weight is not None:
            weights = keras.ops.cast(keras.ops.copy(sample_weight), loss.dtype)
            weights = weights if mask is None else masked(weights, mask)
            return _Sum(loss.dtype)(weights, weights)
        if mask is None or loss.reduction == "sum":
            return None
        return keras.ops.sum(keras.ops.cast(mask, loss.dtype))

    @contextlib.contextmanager
    def _in_place_of_losses(self, function):
        """A scope in which `function(index, loss, ...)` is called in place of each loss."""
        container = self._model._compile_loss
        if container is None:
            yield
            return
        own = container._flat_losses
        container._flat_losses = [
            item._replace(loss=functools.partial(function, i, item.loss))
            for i, item in enumerate(own)
        ]
        try:
            yield
        finally:
            container._flat_losses = own

    @contextlib.contextmanager
    def _metrics_checked(self, rows):
        """A scope in which a metric that is the mean of a function must have a value per sample."""
        with contextlib.ExitStack() as stack:
            for metric in getattr(self._model._compile_metrics, "metrics", []):
                own = getattr(metric, "_fn", None)
                if isinstance(metric, keras.metrics.MeanMetricWrapper) and own is not None:

                    def checked(*arguments, own=own, name=metric.name, **keywords):
                        values = own(*arguments, **keywords)
                        return _per_sample(values, f"the metric {name!r}", rows)

                    stack.enter_context(_attribute(metric, "_fn", checked))
            yield


def call(model, x, training):
    """Call the model as Keras's train step does."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def unpack(data):
    return keras.utils.unpack_x_y_sample_weight(data)


class Outputs:
    """A model's outputs as lists of arrays: the outputs and their masks."""

    def flat(self, y_pred):
        """Return the lists, and remember the structure."""
        arrays = keras.tree.flatten(y_pred)
        masks = [mask_of(array) for array in arrays]
        self._structure = keras.tree.map_structure(lambda _: None, y_pred)
        self.count = len(arrays)
        self._masked = [i for i, mask in enumerate(masks) if mask is not None]
        return arrays, [masks[i] for i in self._masked]

    def packed(self, arrays, masks):
        """Return the outputs that these lists are of."""
        for i, mask in zip(self._masked, masks):
            arrays[i] = masked(arrays[i], mask)
        return keras.tree.pack_sequence_as(self._structure, arrays)


class Step(StepInSlices):
    """A train step in slices. A backend defines the loops over slices, and the gradients."""

    def __init__(self, model, size, loss):
        super().__init__(model, size, loss)
        self.losses, self.outputs = Losses(model, self.replicas), Outputs()

    def replicas(self):
        """Return the number of replicas by which Keras divides a loss."""
        return 1

    def check(self):
        """Raise an error if this model can't be trained in slices, at the start of a training."""
        if self.loss != "batch":
            return
        if self.model._compile_loss is None:
            raise ValueError(
                "MicroBatches(loss='batch') needs a model that is compiled with a loss."
            )
        for layer in self.model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
                raise ValueError(
                    "MicroBatches(loss='batch') can't be used with batch normalization that "
                    "trains: the output of a sample depends on the other samples of its slice. "
                    f"Freeze the layer with `trainable=False`. Received: {layer.name!r}"
                )

    def track(self, loss, rows, x, y, y_pred, sample_weight):
        """Update the metrics with a slice, or with a batch."""
        self.model._loss_tracker.update_state(loss * self.replicas(), sample_weight=rows)
        self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def loss_of_outputs(self, y, y_pred, sample_weight):
        """Return the loss of the whole batch, without the losses that layers add."""
        return self.model._compile_loss(y, y_pred, sample_weight)

    def penalties(self, losses, share):
        """Return a slice's share of the losses that layers add."""
        total = sum(map(self.model._aggregate_additional_loss, losses), keras.ops.zeros(()))
        return keras.ops.cast(share, total.dtype) * total

    @staticmethod
    def product(arrays, gradients):
        """Return a scalar whose gradient with respect to the arrays is `gradients`."""
        pairs = [(a, g) for a, g in zip(arrays, gradients) if g is not None]
        return sum(keras.ops.sum(_wide(a) * _wide(g)) for a, g in pairs)


def _wide(array):
    dtype = keras.backend.standardize_dtype(array.dtype)
    return keras.ops.cast(array, "float32") if dtype in ("float16", "bfloat16") else array
