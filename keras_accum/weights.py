"""The weights of micro-batches in their windows. No host is imported here."""

from keras_accum import arguments
from keras_accum.said import Said

_NOT_WEIGHTED = (
    "`weigh` needs an optimizer that was constructed with reduction='weighted'. "
    "Received: reduction={!r}"
)
_MISSING = (
    "reduction='weighted' needs the weight of each micro-batch: "
    "`fit(..., callbacks=[MicroBatchWeights()])`, or in a train step of your own "
    "`optimizer.weigh(weight)` before `apply_gradients`."
)
_OUTSIDE = (
    "`weigh` was called outside of the traced function that applies the gradients. The weight "
    "would become a constant of that function, and later micro-batches would get the same weight. "
    "Call `weigh` in the traced function, where the weight may be a tensor, or train with "
    "run_eagerly=True. In `fit`, use the callback MicroBatchWeights. Received: weight={}"
)


class Weights:
    """The weights that were said and that no micro-batch has taken yet."""

    def __init__(self, accumulation):
        self._accumulation = accumulation
        self._said = Said(accumulation, _OUTSIDE)

    def __bool__(self):
        return bool(self._said)

    def say(self, weight):
        """Keep the weight of the next micro-batch; see `weigh` of an optimizer."""
        options = self._accumulation.options
        if options.reduction != "weighted":
            raise ValueError(_NOT_WEIGHTED.format(options.reduction))
        arguments.check_weight(weight)
        if options.accumulates:
            self._said.say(weight)

    def take(self):
        """Return the weight of the micro-batch that is run or traced."""
        weight = self._said.take()
        if weight is None:
            raise ValueError(_MISSING)
        return weight

    def forget(self):
        """Drop weights that no micro-batch took, as those that a validation step has set."""
        self._said.forget()

    def apply(self, gradients, variables):
        """Return the gradients times the weight of their micro-batch, and the weight.

        The factor includes the number of replicas, because Keras divides the loss of each replica
        by that number. A weight that isn't a number >= 0 makes the gradients NaN.
        """
        port, window = self._accumulation.port, self._accumulation.window
        ops = port.ops
        weight = port.cast(self.take(), window.weight.dtype)
        is_weight = ops.logical_and(weight >= 0, port.is_finite(weight))
        weight = ops.where(is_weight, weight, ops.zeros_like(weight))
        nan = float("nan") * ops.ones_like(weight)
        factor = ops.where(is_weight, weight * port.replicas(), nan)

        def times(gradient, variable):
            if port.overwrites(variable):
                return gradient
            dtype = window.sum_of(variable).dtype  # half precision could overflow
            return port.times(port.cast(gradient, dtype), port.cast(factor, dtype))

        return [times(g, v) for g, v in zip(gradients, variables)], weight
