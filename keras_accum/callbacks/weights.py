"""The callback `MicroBatchWeights`, for all hosts. No host is imported here."""

from keras_accum.base import inner
from keras_accum.callbacks.base import SubstitutesTrainFunction

# The reductions of a loss, by what they divide by. "auto" is a name of Keras 2.
_BY_COUNT = ("mean", "sum_over_batch_size", "auto")
_BY_SAMPLE_WEIGHT = "mean_with_sample_weight"


def are_means(losses):
    """True if all of these losses are means, whatever they divide by."""
    return _reductions(losses) <= {*_BY_COUNT, _BY_SAMPLE_WEIGHT}


def _reductions(losses):
    return {getattr(loss, "reduction", "mean") for loss in losses}


class MicroBatchWeights(SubstitutesTrainFunction):
    """Set the weight of each micro-batch of `fit`, for `reduction="weighted"`.

    The loss of a micro-batch is a mean. The mean of means is the mean of the big batch only if all
    micro-batches have the same number of elements, which isn't so if sequences are masked or if the
    last batch is short. If each micro-batch is weighted by the number of elements by which its loss
    was divided, the window is equal to the big batch again.

    By default, the callback takes the weight by which Keras divides the model's loss, which depends
    on the loss's reduction. With the default reduction, the weight is the number of unmasked
    elements of the model's output (samples, or samples times steps), whatever their sample weights.
    With `"mean_with_sample_weight"` of Keras 3, the weight is the sum of their sample weights.

    Args:
        weight: Callable or None (default). `weight(x, y, y_pred, sample_weight)` returns the weight
            of a micro-batch, a scalar >= 0, computed with operations of Keras. Required if the
            model has several outputs with masks, or a loss with a reduction of its own.

    Raises:
        TypeError: If `weight` isn't callable. At the start of training, if the model's optimizer
            isn't of this package.
        ValueError: At the start of training, if the optimizer's `reduction` isn't "weighted", or if
            the weight can't be derived from the model's loss.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AdamAccumulate, MicroBatchWeights
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=2, reduction="weighted"), loss="mse")
    >>> x, y = np.ones((15, 3)), np.ones((15, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[MicroBatchWeights()])
    >>> model.optimizer.completed_updates
    1
    """

    # A host defines: `_ops` with cast, shape and expand_dims; how to sum a tensor, how to flatten a
    # structure, and how to find the mask of an output.
    _ops = _sum = _flatten = _mask = None

    def __init__(self, weight=None):
        super().__init__()
        if weight is not None and not callable(weight):
            raise TypeError(
                "`weight` must be None or a function of (x, y, y_pred, sample_weight). "
                f"Received: weight={weight!r}"
            )
        self._weight = weight

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        optimizer = inner(self.model.optimizer)
        if optimizer.reduction != "weighted":
            raise ValueError(
                "MicroBatchWeights needs an optimizer that was constructed with "
                f"reduction='weighted'. Received: reduction={optimizer.reduction!r}"
            )
        weight = self._weight or self._weight_of_loss(self.model.loss)
        self._dtype = optimizer._accumulation.port.scalar_dtype
        self._restore_compute_loss()
        self._is_training = True
        attributes, compute_loss = vars(self.model), self.model.compute_loss
        names = "x", "y", "y_pred", "sample_weight"  # Keras passes these by position or by name

        def compute_loss_and_weigh(*args, **kwargs):
            given = {**dict(zip(names, args)), **kwargs}
            if self._is_training:
                optimizer.weigh(weight(*[given.get(name) for name in names]))
            return compute_loss(*args, **kwargs)

        own = {name: attributes[name] for name in ("compute_loss",) if name in attributes}
        compute_loss_and_weigh.in_place_of = own
        attributes["compute_loss"] = compute_loss_and_weigh
        self._put_substitute()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._restore_compute_loss()

    def on_test_begin(self, logs=None):
        self._is_training = False

    def on_test_end(self, logs=None):
        self._is_training = True

    def _restore_compute_loss(self):
        """Restore the model's own `compute_loss`, also after a training that was aborted."""
        # `evaluate` in another callback sets weights, too, and no micro-batch takes the last.
        inner(self.model.optimizer)._accumulation.weights.forget()
        attributes = vars(self.model)
        own = getattr(attributes.get("compute_loss"), "in_place_of", None)
        if own is not None:
            del attributes["compute_loss"]
            attributes.update(own)

    def _weight_of_loss(self, losses):
        found = self._flatten(losses)
        kinds = _reductions(found)
        if losses is None or len(kinds) != 1 or not are_means(found):
            raise ValueError(
                "MicroBatchWeights can't tell what the model's loss is divided by. Give the "
                "callback `weight`, a function of (x, y, y_pred, sample_weight). For a loss that "
                f"sums, use reduction='sum' and no weights. Received: loss={losses!r}"
            )
        return self._sample_weights if kinds == {_BY_SAMPLE_WEIGHT} else self._elements

    def _elements(self, x, y, y_pred, sample_weight):
        """Return the number of elements over which a loss is the mean."""
        outputs = self._flatten(y_pred)
        masks = [self._mask(output) for output in outputs]
        if len(outputs) == 1 and masks[0] is not None:
            return self._sum(self._ops.cast(masks[0], "float32"))
        if any(mask is not None for mask in masks):
            raise ValueError(
                "MicroBatchWeights can't tell the weight of several masked outputs: give the "
                "callback `weight`, a function of (x, y, y_pred, sample_weight)."
            )
        shape = self._ops.shape(outputs[0])
        rows = self._ops.cast(shape[0], "float32")
        if len(outputs) > 1:
            return rows
        for axis in range(1, len(outputs[0].shape) - 1):
            rows = rows * self._ops.cast(shape[axis], "float32")
        return rows

    def _sample_weights(self, x, y, y_pred, sample_weight):
        """Return the sum of the sample weights by which a weighted mean loss is divided."""
        if sample_weight is None:
            return self._elements(x, y, y_pred, sample_weight)
        weights, *more = self._flatten(sample_weight)
        output, *others = self._flatten(y_pred)
        if more or others:
            raise ValueError(
                "MicroBatchWeights can't tell the weight of several outputs with sample weights: "
                "give the callback `weight`, a function of (x, y, y_pred, sample_weight)."
            )
        weights = self._ops.cast(weights, self._dtype)
        mask = self._mask(output)
        if mask is not None:
            while len(weights.shape) < len(mask.shape):
                weights = self._ops.expand_dims(weights, -1)
            weights = weights * self._ops.cast(mask, self._dtype)
        return self._sum(weights)
