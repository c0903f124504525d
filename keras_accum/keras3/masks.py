"""The mask of an output, which Keras gives only to layers; backends keep it differently."""

import keras


class _WithMask(keras.layers.Layer):
    """Returns what it is called on, together with the mask, if any, that Keras gives to `call`."""

    supports_masking = True

    def call(self, output, mask=None):
        return (output,) if mask is None else (output, mask)


class _GivesMask(keras.layers.Layer):
    """Returns what it is called on, with the mask that `mask` is."""

    supports_masking = True
    mask = None

    def call(self, output):
        return output

    def compute_mask(self, inputs, previous_mask):
        return self.mask


_with_mask = _WithMask(name="mask_of_an_output")


def mask_of(output):
    """Return the mask that the layers have given to an output, None without a mask."""
    found = _with_mask(output)
    return found[1] if len(found) > 1 else None


def masked(output, mask):
    """Return an output with this mask, as from a layer."""
    layer = _GivesMask(name="mask_for_an_output")
    layer.mask = mask
    return layer(output)
