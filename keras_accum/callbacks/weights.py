"""What the callback `MicroBatchWeights` does, for all hosts. No host is imported here."""

from keras_accum.callbacks.base import SubstitutesTrainFunction, inner

# Of a loss: what it divides by, "auto" being a name of Keras 2.
_BY_COUNT = ("mean", "sum_over_batch_size", "auto")
_BY_SAMPLE_WEIGHT = "mean_with_sample_weight"


class MicroBatchWeights(SubstitutesTrainFunction):
    """Tell `reduction="weighted"` what each micro-batch of `fit` weighs.

    The loss of a micro-batch is a mean, and the mean of means is the mean of the large batch only
    where all are over as many elements. Where sequences are masked, or the last batch is short,
    they aren't. With each micro-batch weighted by the number of elements that its loss was divided
    by, a window is the large batch again.

    What the weight is by itself depends on the reduction of the model's loss, as does what Keras
    divides by: with the default, the number of elements of the model's output that aren't masked
    (samples, or samples times steps), whatever their sample weights; with
    "mean_with_sample_weight" of Keras 3, the sum of their sample weights.

    Args:
        weight: Callable, default None. `weight(x, y, y_pred, sample_weight)` returns the weight of
            a micro-batch, a scalar >= 0, in operations of Keras. It's needed where the model has
            several outputs with masks, or a loss that reduces in a way of its own.

    Raises:
        TypeError: if `weight` isn't callable; at the start of training, if the model's optimizer
            is none of keras_accum.
        ValueError: at the start of training, if the optimizer's `reduction` isn't "weighted", and
            if there is no weight to be told from the model's loss.

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

    # What a host has: an `ops` with cast, shape and expand_dims; how it sums, how it flattens
    # structures and how it finds the mask of an output.
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
        self._dtype = optimizer._scalar_dtype
        self._take_out()
        self._is_training = True
        attributes, compute_loss = vars(self.model), self.model.compute_loss
        names = "x", "y", "y_pred", "sample_weight"  # as Keras hands them over, by either way

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
        self._take_out()

    def on_test_begin(self, logs=None):
        self._is_training = False

    def on_test_end(self, logs=None):
        self._is_training = True

    def _take_out(self):
        """Give the model its own `compute_loss` back; a training that broke off hasn't."""
        # `evaluate` in another callback says weights, too, and no micro-batch takes the last.
        inner(self.model.optimizer)._forget_weights()
        attributes = vars(self.model)
        own = getattr(attributes.get("compute_loss"), "in_place_of", None)
        if own is not None:
            del attributes["compute_loss"]
            attributes.update(own)

    def _weight_of_loss(self, losses):
        kinds = {getattr(loss, "reduction", "mean") for loss in self._flatten(losses)}
        if losses is None or len(kinds) != 1 or not kinds <= {*_BY_COUNT, _BY_SAMPLE_WEIGHT}:
            raise ValueError(
                "MicroBatchWeights can't tell what the model's loss is divided by. Give it "
                "`weight`, a function of (x, y, y_pred, sample_weight); for a loss that sums, "
                f"use reduction='sum' and no weights. Received: loss={losses!r}"
            )
        return self._sample_weights if kinds == {_BY_SAMPLE_WEIGHT} else self._elements

    def _elements(self, x, y, y_pred, sample_weight):
        """The number of elements that a loss is the mean of."""
        outputs = self._flatten(y_pred)
        masks = [self._mask(output) for output in outputs]
        if len(outputs) == 1 and masks[0] is not None:
            return self._sum(self._ops.cast(masks[0], "float32"))
        if any(mask is not None for mask in masks):
            raise ValueError(
                "MicroBatchWeights can't tell what several masked outputs weigh: give it `weight`, "
                "a function of (x, y, y_pred, sample_weight)."
            )
        shape = self._ops.shape(outputs[0])
        rows = self._ops.cast(shape[0], "float32")
        if len(outputs) > 1:
            return rows
        for axis in range(1, len(outputs[0].shape) - 1):
            rows = rows * self._ops.cast(shape[axis], "float32")
        return rows

    def _sample_weights(self, x, y, y_pred, sample_weight):
        """The sum of the sample weights that a loss is the weighted mean by."""
        if sample_weight is None:
            return self._elements(x, y, y_pred, sample_weight)
        weights, *more = self._flatten(sample_weight)
        output, *others = self._flatten(y_pred)
        if more or others:
            raise ValueError(
                "MicroBatchWeights can't tell what several outputs with sample weights weigh: give "
                "it `weight`, a function of (x, y, y_pred, sample_weight)."
            )
        weights = self._ops.cast(weights, self._dtype)
        mask = self._mask(output)
        if mask is not None:
            while len(weights.shape) < len(mask.shape):
                weights = self._ops.expand_dims(weights, -1)
            weights = weights * self._ops.cast(mask, self._dtype)
        return self._sum(weights)
