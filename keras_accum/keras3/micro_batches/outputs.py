"""A model's outputs in the slices of a batch, to compute one loss."""

import keras
from keras import ops

from keras_accum.keras3.masks import get_mask, set_mask

_NO_SAMPLES = (
    "MicroBatches(loss='batch') joins outputs of slices: the first dimension of each must be the "
    "number of samples. Repeat an output that all samples share, such as a scale, as in "
    "`keras.ops.repeat(scale[None], keras.ops.shape(x)[0], axis=0)`. Received: a slice of {} "
    "samples and an output of shape {}"
)


class Outputs:
    """A model's outputs with their masks, and the losses that its layers add.

    arrays: the joined outputs, in the order of `keras.tree.flatten`.
    penalties: the sum over slices of each loss added by layers.
    """

    def flatten(self, y_pred, penalties, count):
        """Return arrays to join, for a slice of `count` samples."""
        arrays = keras.tree.flatten(y_pred)
        for shape in (tuple(array.shape) for array in arrays):
            known = isinstance(count, int) and shape[:1] != (None,)
            if not shape or known and shape[0] != count:
                raise ValueError(_NO_SAMPLES.format(count, shape))
        masks = list(map(get_mask, arrays))
        self._structure = keras.tree.map_structure(lambda _: None, y_pred)
        self._masked = [i for i, mask in enumerate(masks) if mask is not None]
        self._count = len(arrays)
        return [*arrays, *(masks[i] for i in self._masked), *(loss[None] for loss in penalties)]

    def join(self, arrays):
        """Take the joined arrays."""
        first, last = self._count, self._count + len(self._masked)
        self.arrays, self._masks = arrays[:first], arrays[first:last]
        self.penalties = list(map(ops.sum, arrays[last:]))

    def pack(self, arrays):
        """Return outputs with masks, and penalties, from values of `arrays` and `penalties`."""
        for i, mask in zip(self._masked, self._masks):
            set_mask(arrays[i], mask)
        y_pred = keras.tree.pack_sequence_as(self._structure, arrays[: self._count])
        return y_pred, arrays[self._count :]
