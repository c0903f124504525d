"""What `compare_with_big_batch` and the demonstration need of Keras 3."""

import contextlib

import keras

from keras_accum.keras3.generators import remember_generators  # noqa: F401

map_structure = keras.tree.map_structure


def set_policy(layer, policy):
    layer.dtype_policy = policy


if keras.backend.backend() == "tensorflow":
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
        precision = torch.get_float32_matmul_precision()
        allows_tf32 = torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = allows_tf32

    def device_name():
        device = keras.ops.zeros(()).device
        if device.type == "cuda":
            return torch.cuda.get_device_name(device)
        return device.type.upper()
