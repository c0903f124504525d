"""The mask of a model's output, which Keras gives only to layers; backends keep it differently."""

import keras


class _WithMask(keras.layers.Layer):
    """Returns what it is called on, together with the mask, if any, that Keras gives to `call`."""

    supports_masking = True

    def call(self, output, mask=None):
        return (output,) if mask is None else (output, mask)


_with_mask = _WithMask(name="mask_of_an_output")


def mask_of(output):
    """Return the mask that the layers have given to an output, None without a mask."""
    found = _with_mask(output)
    return found[1] if len(found) > 1 else None
