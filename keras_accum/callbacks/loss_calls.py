"""The calls of a model's losses in a train step, and the divisor of each loss."""

import contextlib

import numpy as np

from keras_accum.callbacks.train_function import attribute
from keras_accum.host import check_members

BY_SAMPLE_WEIGHT = "mean_with_sample_weight"  # a loss reduction, dividing by the sample weights


@contextlib.contextmanager
def watching(
    library, model, guard=contextlib.nullcontext, look=lambda calls: None, when_built=lambda: None
):
    """Yield a list, to which each call of a compiled loss adds a LossCall within this scope.

    guard: returns a scope for looking at a call.
    look: gets the list after each call.
    when_built: called if Keras builds its container of losses within this scope.
    """
    calls = []

    def note(*arguments):
        with guard():
            calls.append(LossCall(library, *arguments))
            look(calls)

    def watch(loss):
        return Watched(library, loss, note)

    container, name, replace = library.find_losses(model)
    scope = contextlib.nullcontext()
    if container is not None:
        check_members(library.keras, container, [name, "build", "built"])
        scope = _replaced(container, name, lambda item: replace(item, watch), when_built)
    with scope:
        yield calls


@contextlib.contextmanager
def _replaced(container, name, replace, when_built):
    """Replace the items of a list in Keras's container of losses, which may not be built yet."""
    with contextlib.ExitStack() as scope:

        def install():
            items = list(map(replace, vars(container)[name]))
            scope.enter_context(attribute(container, name, items))

        def build(*arguments, **keywords):
            type(container).build(container, *arguments, **keywords)
            install()
            when_built()

        if container.built:
            install()
        scope.enter_context(attribute(container, "build", build))
        yield


def noting_values(loss, call, *arguments, **keywords):
    """Call a loss, with `call` in place of its own. Return its result, and what `call` returned.

    A copy is called: two models in two threads may share a loss.
    """
    found = []

    def call_and_note(*arguments, **keywords):
        found.append(call(*arguments, **keywords))
        return found[-1]

    twin = object.__new__(type(loss))
    vars(twin).update(vars(loss), call=call_and_note)
    return twin(*arguments, **keywords), found


class Watched:
    """Stands for a loss in Keras's container, and notes its calls."""

    def __init__(self, library, loss, note):
        is_watched = isinstance(loss, Watched)
        self._stock_call = library.keras.losses.Loss.__call__
        self._loss = loss._loss if is_watched else loss
        self._notes = [*loss._notes, note] if is_watched else [note]

    def __getattr__(self, name):
        return getattr(self._loss, name)

    def __call__(self, y_true, y_pred, sample_weight=None):
        loss, found = self._loss, []
        if type(loss).__call__ is self._stock_call:
            result, found = noting_values(loss, loss.call, y_true, y_pred, sample_weight)
        else:
            result = loss(y_true, y_pred, sample_weight=sample_weight)
        for note in self._notes:
            note(loss, found, y_true, y_pred, sample_weight)
        return result


class LossCall:
    """One call to a loss.

    values: the result of its `call`, None if it has another `__call__` than Keras's.
    shape: the shape of `values`; empty if unknown.
    targets: the first array of the loss's targets.
    is_per_sample: True if `values` has a row for each sample. In a graph that doesn't know the
        number of rows, values may have others.
    masks: the masks on the output and on `values`, each may be None.
    """

    def __init__(self, library, loss, found, y_true, y_pred, sample_weight):
        self._library, self.loss = library, loss
        self.values = found[0] if len(found) == 1 else None
        self.shape, self.targets = read_shape(self.values), library.flatten(y_true)[0]
        self.is_per_sample = bool(self.shape) and (
            self.shape[0] in (None, *read_shape(self.targets)[:1])
        )
        self.masks = [library.get_mask(y_pred), library.get_mask(self.values)]
        self.divides_by_weights = loss.reduction == BY_SAMPLE_WEIGHT and sample_weight is not None
        self._sample_weight = sample_weight

    @property
    def size(self):
        """The number of values, None if a graph doesn't know it."""
        return None if None in self.shape else int(np.prod(self.shape))

    @property
    def has_mask(self):
        return any(mask is not None for mask in self.masks)

    def find_divisor(self, dtype):
        """Return Keras's divisor: its own reduction of ones to a sum.

        It is a number if nothing masks or weights the values, and their shape is known.
        """
        library, ops = self._library, self._library.ops
        if not self.has_mask and self._sample_weight is None:
            # Not a sum of ones: XLA would also count the rows that the loss has left out.
            return self.size if self.size is not None else ops.cast(ops.size(self.values), dtype)
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


def read_shape(array):
    """Return a shape; empty if unknown. Its elements may be None in a graph."""
    shape = getattr(array, "shape", ())
    # TensorFlow may not know the rank.
    return () if getattr(shape, "rank", 0) is None else tuple(shape)
