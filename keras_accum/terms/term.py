"""A term of a loss: one call of a compiled loss, and what Keras divides it by."""

import enum
import functools
import numbers
import operator

from keras_accum.host import is_code_of_keras

BY_SAMPLE_WEIGHT = "mean_with_sample_weight"  # a loss reduction, dividing by the sample weights
_MEANS = {"mean", "sum_over_batch_size", "auto", BY_SAMPLE_WEIGHT}  # "auto" is tf_keras's


# Keras's functions that take a mean over the last axis: samples, if an output has no other axis.
_MEANS_OF_LAST = {
    *("mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error"),
    *("mean_squared_logarithmic_error", "huber", "log_cosh", "hinge", "squared_hinge", "poisson"),
    *("binary_crossentropy", "binary_focal_crossentropy"),
}


_TIMES_WEIGHTS = "returns one number, which Keras multiplies by the mean of the sample weights"


class Divisor(enum.Enum):
    """What a loss is divided by, with the words for it in messages."""

    SAMPLES = "is a mean over samples"
    VALUES = "is a mean over values, of which samples may have unequal numbers"
    UNMASKED = "is divided by the number of elements that aren't masked or ignored"
    SAMPLE_WEIGHTS = "is divided by the sum of sample weights"
    NOTHING = "is a sum"
    COMPARES = "isn't a mean over samples: it compares samples with each other, or adds them up"
    UNKNOWN = "can't be read"


def is_own(loss):
    """True if a loss runs a user's code: its class's methods, or its function."""
    cls = type(loss)
    parts = [cls.__call__, cls.call, *([loss.fn] if hasattr(loss, "fn") else [])]
    return "call" in vars(loss) or not all(map(is_code_of_keras, parts))


def find_reductions(losses):
    """Return the reductions of losses. Strings and functions are means."""
    return {getattr(loss, "reduction", "mean") for loss in losses}


def are_means(losses):
    """Return True if all losses are means, whatever they are divided by."""
    return find_reductions(losses) <= _MEANS


class Term:
    """One call of a loss.

    values: the result of the loss's `call`, None if its `__call__` is a user's.
    shape: the shape of `values`; empty if unknown.
    targets: the first array of the loss's targets.
    masks: the masks on the output and on `values`; each may be None.
    is_own: True if the loss runs a user's code.
    is_in_loss: False if its weight in `compile(loss_weights=...)` is 0.
    number: its divisor, None until somebody asks for it.
    """

    number = None

    def __init__(self, host, loss, values, y_true, y_pred, sample_weight, weight=None):
        self._host, self.loss, self.values, self.is_own = host, loss, values, is_own(loss)
        self.shape, self.targets = read_shape(values), host.flatten(y_true)[0]
        rank = getattr(getattr(values, "shape", None), "rank", 0)  # None in a graph of TensorFlow
        self._is_number = values is not None and self.shape == () and rank == 0
        self._outputs = y_pred
        self.masks = [host.get_mask(y_pred), host.get_mask(values)]
        self._sample_weight = host.flatten(sample_weight)[0]  # Keras takes a list of one array
        self.is_in_loss = not isinstance(weight, numbers.Real) or weight != 0

    @property
    def name(self):
        return self.loss.name or type(self.loss).__name__

    @property
    def is_of_bag(self):
        """True if the model returns one row, and y another number or one that a graph doesn't know.

        Only a loss that can't be read asks for it.
        """
        outputs = self._host.flatten(self._outputs)[0]
        return count_rows(outputs) == 1 != count_rows(self.targets)

    @property
    def size(self):
        """The number of values, None if a graph doesn't know it."""
        return None if None in self.shape else _multiply(self.shape)

    @property
    def divisor(self):
        """The kind of number that Keras divides the loss by, a Divisor."""
        if self.values is None:  # a user's `__call__` may do anything
            return Divisor.UNKNOWN
        reduction, has_samples = self.loss.reduction, self._has_samples
        # A gradient of several values is that of their sum. One number is neither summed nor not.
        is_sum = reduction == "sum" or has_samples and reduction in (None, "none")
        is_sum = is_sum and not self._is_number
        compares = self._name_in_keras == "circle" or self._reduces_samples
        if not self.is_own and (compares or not (has_samples or is_sum)):
            return Divisor.UNKNOWN if self._is_mean_of_samples else Divisor.COMPARES
        if is_sum:
            return Divisor.NOTHING
        if not has_samples or not are_means([self.loss]):
            return Divisor.UNKNOWN
        if self.depends_on_data:
            return Divisor.SAMPLE_WEIGHTS if self._divides_by_weights else Divisor.UNMASKED
        return Divisor.SAMPLES if len(self.shape) == 1 else Divisor.VALUES

    @property
    def _has_samples(self):
        """True if there are one or more values for each sample, as far as it is known."""
        rows = count_rows(self.targets)
        if not self.shape or None in self.shape or not rows:
            return None in self.shape  # what a graph doesn't know counts as that of samples
        return self.size % rows == 0

    @property
    def _name_in_keras(self):
        """The name of Keras's function, "" for a user's loss."""
        return "" if self.is_own else getattr(getattr(self.loss, "fn", None), "__name__", "")

    @property
    def _is_mean_of_samples(self):
        """True for Keras's function of a mean over the last axis, if an output has no other."""
        return self._is_number and self._name_in_keras in _MEANS_OF_LAST

    @property
    def _reduces_samples(self):
        """True if a loss of Keras reduces the samples' axis, as `Dice(axis=(0, 1, 2))`."""
        axes = getattr(self.loss, "_fn_kwargs", {}).get("axis")
        axes = axes if isinstance(axes, (list, tuple)) else [axes]
        return any(axis in (0, -len(self.shape) - len(axes)) for axis in axes)

    @property
    def is_mean(self):
        """True if Keras divides the loss by a number that can be read."""
        means = Divisor.SAMPLES, Divisor.VALUES, Divisor.UNMASKED, Divisor.SAMPLE_WEIGHTS
        return self.divisor in means

    @property
    def _divides_by_weights(self):
        return self.loss.reduction == BY_SAMPLE_WEIGHT and self._sample_weight is not None

    @property
    def depends_on_data(self):
        """True if a mask or sample weights are in the divisor, as far as they can be seen."""
        return any(mask is not None for mask in self.masks) or self._divides_by_weights

    @property
    def obstacle(self):
        """Why the loss is no mean over samples that can be read, in words, or ""."""
        if self._is_mean_of_samples:
            return "" if self._sample_weight is None else _TIMES_WEIGHTS
        if self.values is None:
            return "has a `__call__` of its own"
        return "returns one number" if self._is_number else f"has values of shape {self.shape}"

    @property
    def key(self):
        """Equal for calls whose divisors have the same ratio in each batch.

        Integers are the number of values per sample.
        """
        tensors = [*self.masks, self._sample_weight if self._divides_by_weights else None]
        tensors = [tensor for tensor in tensors if tensor is not None]
        if tensors:
            return tuple(map(id, tensors))
        if None in self.shape[1:]:
            return (id(self.values),)
        return _multiply(self.shape[1:])

    @property
    def _weights_add_values(self):
        """True if sample weights have more dimensions than one per sample, and not the values'."""
        if self._sample_weight is None:
            return False
        shape = read_shape(self._sample_weight)
        return shape != self.shape and any(n != 1 for n in shape[1:])

    def count(self, dtype):
        """Return Keras's divisor: divisor * loss = the sum, as Keras's reduction "sum" has it.

        It is an integer if nothing masks or weights the values, and their shape is known.
        """
        host, ops = self._host, self._host.ops
        weights, divides = self._sample_weight, self._divides_by_weights
        if not (self.depends_on_data or self._weights_add_values):
            # Not a sum of ones: XLA would also count the rows that the loss has left out.
            return self.size if self.size is not None else ops.cast(ops.size(self.values), dtype)
        # Keras divides by the sum of the weights, in their own shape, or else counts values.
        ones = [ops.ones_like(weights if divides else self.values, dtype=dtype) for _ in range(2)]
        for tensor, mask in zip(ones, self.masks):
            if mask is not None:
                host.set_mask(tensor, mask)
        if weights is not None:  # a copy, because Keras on PyTorch multiplies in place
            weights = ops.ones_like(weights) * (weights if divides else 1)
        total = host.make_sum_loss(dtype)
        total.call = lambda *_: ones[1]
        return total(ones[0], ones[0], sample_weight=weights)


def _multiply(sizes):
    return functools.reduce(operator.mul, sizes, 1)  # NumPy's would end a graph of PyTorch


def count_rows(array):
    """Return an array's number of rows, None if a graph doesn't know it."""
    return next(iter(read_shape(array)), None)


def read_shape(array):
    """Return a shape; empty if unknown. Its elements may be None in a graph."""
    shape = getattr(array, "shape", ())
    # TensorFlow may not know the rank.
    return () if getattr(shape, "rank", 0) is None else tuple(shape)
