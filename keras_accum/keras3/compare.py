"""`compare_with_big_batch` on Keras 3."""

import contextlib

import keras

from keras_accum.compare import subject
from keras_accum.compare.verdict import list_some
from keras_accum.engine.optimizers import accumulating_in
from keras_accum.keras3.generators import remember_generators
from keras_accum.keras3.host import HOST

VARIABLES, GENERATORS = (keras.Variable,), (keras.random.SeedGenerator,)

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    from keras_accum.tensorflow.compare import (
        device_name,
        in_full_precision,
        list_embeddings,
        note_clipping,
        running,
    )

    VARIABLES, GENERATORS = (*VARIABLES, tf.Variable), (*GENERATORS, tf.random.Generator)

elif keras.backend.backend() == "jax":
    import jax

    def in_full_precision():
        return jax.default_matmul_precision("highest")

    running = in_full_precision

    def device_name():
        device = keras.ops.zeros(()).device
        return "CPU" if device.platform == "cpu" else device.device_kind

else:
    import torch

    @contextlib.contextmanager
    def in_full_precision():
        precision = torch.get_float32_matmul_precision()
        allows_tf32 = torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = allows_tf32

    running = in_full_precision

    def device_name():
        device = keras.ops.zeros(()).device
        if device.type == "cuda":
            return torch.cuda.get_device_name(device)
        return device.type.upper()


_SPARSE = (
    "Embeddings on TensorFlow ({}): the gradients are equal, but stock {} gets them sparse. Adam "
    "squares each occurrence of a row separately, others skip rows that don't occur. {}"
)
_SAME = "For the same, use the stock optimizer with MicroBatches({}) and whole batches."


def _is_linear(optimizer):
    """True if an update is linear in the gradient, so that it is the same for sparse ones."""
    return optimizer._stock_class is keras.optimizers.SGD and not optimizer.momentum


class Subject(subject.Subject):
    """A Keras 3 model."""

    variables, generators, host = VARIABLES, GENERATORS, HOST
    remember_generators = staticmethod(remember_generators)
    # Only TensorFlow computes float64 in float64: the divisors of means are float32 elsewhere.
    internal_dtypes = () if keras.backend.backend() == "tensorflow" else ("float32",)

    def is_optimizer(self, obj):
        return isinstance(obj, keras.optimizers.Optimizer)

    def get_name(self, variable):
        return variable.path

    def list_buffers(self):
        return HOST.list_buffers(self.model)

    def adam(self, optimizer):
        return self.package.AdamAccumulate

    def compute_in_float32(self, layer):
        layer.dtype_policy = keras.DTypePolicy("float32")

    def draws(self, layer):
        values = vars(layer).values()
        return any(isinstance(value, keras.random.SeedGenerator) for value in values)

    def list_notes(self, optimizers, size):
        if keras.backend.backend() != "tensorflow":
            return []
        names = list_some(list_embeddings(self._list_layers(), keras))
        remedy = _SAME.format(size)
        ours = [inner for optimizer in optimizers for inner in accumulating_in(optimizer)]
        notes = note_clipping(names, ours, remedy)
        if names and not all(map(_is_linear, ours)):
            stock = type(ours[0])._stock_class.__name__
            notes.append(_SPARSE.format(names, stock, remedy))
        return notes

    def running(self):
        return running()
