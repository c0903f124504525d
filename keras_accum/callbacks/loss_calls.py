"""The calls of a model's losses in a train step, and the divisor of each loss."""

import contextlib

import numpy as np

from keras_accum.callbacks.train_function import attribute
from keras_accum.host import check_members

BY_SAMPLE_WEIGHT = "mean_with_sample_weight"  # a loss reduction, dividing by the sample weights


@contextlib.contextmanager
def watching(library, model, guard=contextlib.nullcontext, look=lambda calls: None):
    """Yield a list, to which each call of a compiled loss adds a LossCall within this scope.

    `guard` returns a scope for looking at a call, and `look` gets the list after each call.
    """
    calls = []

    def note(*arguments):
        with guard():
            calls.append(LossCall(library, *arguments))
            look(calls)

    def watch(loss):
        return Watched(loss, note)

    container, name, replace = library.find_losses(model)
    if container is not None:
        check_members(library.keras, container, [name, "build", "built"])
    with contextlib.nullcontext() if container is None else _replaced(
        container, name, lambda item: replace(item, watch)
    ):
        yield calls


@contextlib.contextmanager
def _replaced(container, name, replace):
    """Replace the items of a list in Keras's container of losses, which may not be built yet."""
    members, kept = vars(container), []

    def install():
        kept.append(members[name])
        members[name] = list(map(replace, members[name]))

    def build(*arguments, **keywords):
        type(container).build(container, *arguments, **keywords)
        install()

    if container.built:
        install()
    try:
        with attribute(container, "build", build):
            yield
    finally:
        if kept:
            members[name] = kept[0]


@contextlib.contextmanager
def noting_values(loss, call):
    """Use `call` in place of `loss.call` within this scope. Yield a list with what it returns."""
    found = []

    def call_and_note(*arguments, **keywords):
        found.append(call(*arguments, **keywords))
        return found[-1]

    with attribute(loss, "call", call_and_note):
        yield found


class Watched:
    """Stands for a loss in Keras's container, and notes its calls."""

    def __init__(self, loss, note):
        self._loss, self._note = loss, note
        # `loss` may be watched already.
        self.watched = loss.watched if isinstance(loss, Watched) else loss

    def __getattr__(self, name):
        return getattr(self._loss, name)

    def __call__(self, y_true, y_pred, sample_weight=None):
        with noting_values(self.watched, self.watched.call) as found:
            result = self._loss(y_true, y_pred, sample_weight=sample_weight)
        self._note(self.watched, found, y_true, y_pred, sample_weight)
        return result


class LossCall:
    """One call to a loss.

    values: the result of its `call`, None if it has another `__call__` than Keras's.
    shape: the shape of `values`; empty if unknown.
    is_per_sample: True if `values` has a row for each sample.
    masks: the masks on the output and on `values`, each may be None.
    """

    def __init__(self, library, loss, found, y_true, y_pred, sample_weight):
        self._library, self.loss = library, loss
        is_of_keras = type(loss).__call__ is library.keras.losses.Loss.__call__
        self.values = found[0] if is_of_keras and len(found) == 1 else None
        self.shape = _read_shape(self.values)
        self.is_per_sample = bool(self.shape) and (
            self.shape[0] in (None, *_read_shape(library.flatten(y_true)[0])[:1])
        )
        self.masks = [library.get_mask(y_pred), library.get_mask(self.values)]
        self.divides_by_weights = loss.reduction == BY_SAMPLE_WEIGHT and sample_weight is not None
        self._sample_weight = sample_weight

    @property
    def has_mask(self):
        return any(mask is not None for mask in self.masks)

    def find_divisor(self, dtype):
        """Return Keras's divisor: its own reduction of ones to a sum.

        It is a number if nothing masks or weights the values, and their shape is known.
        """
        library, ops = self._library, self._library.ops
        if not self.has_mask and self._sample_weight is None and None not in self.shape:
            return int(np.prod(self.shape))
        ones = [ops.ones_like(self.values, dtype=dtype) for _ in range(2)]
        for each, mask in zip(ones, self.masks):
            if mask is not None:
                library.set_mask(each, mask)
        weights = self._sample_weight
        if weights is not None:
            # A copy, because Keras on PyTorch multiplies in place. In a mean only its shape counts.
            weights = ops.ones_like(weights) * (weights if self.divides_by_weights else 1)
        count = library.make_sum_loss(dtype)
        count.call = lambda *_: ones[1]
        return count(ones[0], ones[0], sample_weight=weights)

    def find_kind(self):
        """Return a value that is equal for calls whose divisors have one ratio in each batch.

        Integers are the number of elements per sample.
        """
        parts = [*self.masks, self._sample_weight if self.divides_by_weights else None]
        parts = [part for part in parts if part is not None]
        if parts:
            return tuple(map(id, parts))
        count = 1
        for size in self.shape[1:]:
            if size is None:
                return (id(self.values),)
            count *= size
        return count


def _read_shape(array):
    shape = getattr(array, "shape", ())
    # TensorFlow may not know the rank.
    return () if getattr(shape, "rank", 0) is None else tuple(shape)
