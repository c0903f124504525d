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
    """The structure of a model's outputs, with their masks and the losses that its layers add.

    count: the number of outputs, in the order of `keras.tree.flatten`.
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
        self.count = len(arrays)
        return [*arrays, *(masks[i] for i in self._masked), *(loss[None] for loss in penalties)]

    def split(self, joined):
        """Return the outputs and the sums of penalties, then the masks, of joined arrays."""
        last = self.count + len(self._masked)
        penalties = map(ops.sum, joined[last:])
        return [*joined[: self.count], *penalties], joined[self.count : last]

    def pack(self, arrays, masks):
        """Return outputs with masks, and penalties, from values of `split`."""
        for i, mask in zip(self._masked, masks):
            set_mask(arrays[i], mask)
        y_pred = keras.tree.pack_sequence_as(self._structure, arrays[: self.count])
        return y_pred, arrays[self.count :]
