"""`compare_with_big_batch` on Keras 3."""

import contextlib

import keras

from keras_accum import compare
from keras_accum.convert import inner
from keras_accum.keras3.generators import remember_generators
from keras_accum.keras3.optimizers import accumulating
from keras_accum.keras3.store import Keras3Store


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
        kept = self.gradients[self._get_variable_index(variable)]
        self.assign(kept, keras.ops.cast(to_dense(gradient), kept.dtype))


class Subject(compare.Subject):
    """A Keras 3 model."""

    read = staticmethod(Keras3Store.read)

    def get_name(self, variable):
        return variable.path

    def write(self, variable, value):
        variable.assign(value)

    def loss_scale(self):
        optimizer = self.model.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return float(optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale)
        return optimizer.loss_scale_factor

    def make_recorder(self, options, scale):
        with self.scope():
            recorder = accumulating(Recorder)(loss_scale_factor=scale, **vars(options))
            recorder.build(self.model.trainable_variables)  # JAX's devices need to know its state
            return recorder

    def read_gradients(self, recorder):
        return list(map(self.read, recorder.gradients))

    def list_states(self):
        kept = [v for v in vars(self.model).values() if v is not self.model.optimizer]
        owners = [v for v in kept if isinstance(v, keras.optimizers.Optimizer) and v.built]
        found = [self.model, *self.model.metrics, *map(inner, owners)]
        return list({id(v): v for owner in found for v in owner.variables}.values())

    def list_random(self):
        def draws(layer):
            kind = keras.random.SeedGenerator
            return any(isinstance(value, kind) for value in vars(layer).values())

        return [layer.name for layer in self.model._flatten_layers() if draws(layer)]

    def remember_generators(self):
        return remember_generators()

    def in_full_precision(self):
        return in_full_precision()


def to_dense(gradient):
    return gradient


if keras.backend.backend() == "tensorflow":
    from tensorflow import convert_to_tensor as to_dense

    from keras_accum.tensorflow.compare import device_name, in_full_precision

elif keras.backend.backend() == "jax":
    import jax

    def in_full_precision():
        return jax.default_matmul_precision("highest")

    def device_name():
        device = keras.ops.zeros(()).device
        return "CPU" if device.platform == "cpu" else device.device_kind

else:
    import torch

    @contextlib.contextmanager
    def in_full_precision():
        matmul, convolves = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = convolves

    def device_name():
        device = keras.ops.zeros(()).device
        if device.type == "cuda":
            return torch.cuda.get_device_name(device)
        return device.type.upper()
