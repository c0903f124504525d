"""`compare_with_big_batch` on Keras 3."""

import contextlib

import keras
import numpy as np

from keras_accum.compare import subject
from keras_accum.compare.put_back import Accessor
from keras_accum.compare.verdict import list_some
from keras_accum.convert import accumulating_in
from keras_accum.keras3.generators import remember_generators
from keras_accum.keras3.host import HOST
from keras_accum.keras3.optimizers import accumulating


def to_dense(gradient):
    return gradient


ACCESSORS, SEARCHED = [], ()

if keras.backend.backend() == "tensorflow":
    from tensorflow import convert_to_tensor as to_dense

    from keras_accum.tensorflow.compare import (
        ACCESSORS,
        device_name,
        in_full_precision,
        list_embeddings,
        note_clipping,
        running,
    )

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

    def _write_tensor(tensor, value):
        tensor.data.copy_(value)

    SEARCHED = (torch.nn.Module,)
    ACCESSORS = [
        Accessor(torch.Tensor, lambda tensor: tensor.detach().clone(), _write_tensor),
        Accessor(torch.Generator, torch.Generator.get_state, torch.Generator.set_state, True),
    ]

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


class Recorder(keras.optimizers.Optimizer):
    """Keeps the last update's gradient, and moves no weight."""

    def __init__(self, learning_rate=1.0, **kwargs):
        super().__init__(learning_rate, **kwargs)

    def build(self, variables):
        if not self.built:
            super().build(variables)
            add = self.add_variable_from_reference
            self.gradients = [add(variable, name="gradient") for variable in variables]

    def update_step(self, gradient, variable, learning_rate):
        last = self.gradients[self._get_variable_index(variable)]
        self.assign(last, keras.ops.cast(to_dense(gradient), last.dtype))


_SPARSE = (
    "Embeddings on TensorFlow ({}): the gradients are equal, but stock {} gets them sparse. Adam "
    "squares each occurrence of a row separately, others skip rows that don't occur. {}"
)
_SAME = "For the same, use the stock optimizer with MicroBatches({}) and whole batches."


def _is_linear(optimizer):
    """True if an update is linear in the gradient, so that it is the same for sparse ones."""
    return optimizer._stock_class is keras.optimizers.SGD and not optimizer.momentum


_read, _write = HOST.read, HOST.write


def _restore(_, functions):
    for function in functions:
        function()


_GENERATORS = Accessor(object, lambda _: remember_generators(), _restore, True)


class Subject(subject.Subject):
    """A Keras 3 model."""

    accessors = [
        Accessor(keras.Variable, _read, _write, holds=lambda variable: [variable.value]),
        Accessor(
            keras.random.SeedGenerator,
            lambda generator: _read(generator.state),
            lambda generator, value: _write(generator.state, value),
            is_random=True,
            holds=lambda generator: [generator.state, generator.state.value],
        ),
        *ACCESSORS,
    ]
    searched, host = SEARCHED, HOST
    # Only TensorFlow computes float64 in float64: the divisors of means are float32 elsewhere.
    internal_dtypes = () if keras.backend.backend() == "tensorflow" else ("float32",)

    def is_optimizer(self, obj):
        return isinstance(obj, keras.optimizers.Optimizer)

    def get_name(self, variable):
        return variable.path

    def loss_scale(self, optimizer):
        scale = HOST.loss_scale(optimizer)
        return optimizer.loss_scale_factor if scale is None else scale

    def make_recorder(self, optimizer, options, scale):
        with self.scope():
            recorder = accumulating(Recorder)(loss_scale_factor=scale, **vars(options))
            if optimizer is self.compiled:  # JAX's devices need to know its state
                recorder.build(self.model.trainable_variables)
            return recorder

    def read_gradients(self, recorder):
        ids = map(id, recorder._accumulation.store.variables)
        gradients = dict(zip(ids, getattr(recorder, "gradients", [])))
        return [
            _as_float64(_read(gradients[id(v)]) if id(v) in gradients else np.zeros(v.shape))
            for v in self.model.trainable_variables
        ]

    def compute_in_float32(self, layer):
        layer.dtype_policy = keras.DTypePolicy("float32")

    def draws(self, layer):
        values = vars(layer).values()
        return any(isinstance(value, keras.random.SeedGenerator) for value in values)

    def list_generators(self):
        return [(_GENERATORS, None)]

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


def _as_float64(gradient):
    return gradient.astype(np.result_type(gradient.dtype, "float64"))
