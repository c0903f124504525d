"""Values in `keras.ops`, for JAX and PyTorch."""

import numbers

import keras
from keras import ops

from keras_accum.engine import parts


class Keras3Values(parts.Values):
    """Values in `keras.ops`. Each backend has a subclass."""

    ops = ops

    def value(self, variable):
        return variable.value

    def add_in_place(self, variable, value):
        variable.assign(self.value(variable) + value)

    def one_when_computed(self, gradients):
        return 1

    def as_count(self, condition):
        dtype = keras.backend.standardize_dtype("int")  # Keras's for counters
        return ops.cast(ops.cast(condition, "bool"), dtype)

    def cast(self, value, dtype):
        return ops.cast(value, dtype)

    def times(self, value, factor):
        return ops.where(factor == 0, 0.0, value * factor)

    def all_finite(self, gradients):
        return self.count_if(ops.all(ops.stack([ops.all(ops.isfinite(g)) for g in gradients])))

    def norm(self, tensors):
        # A cast would drop a complex number's imaginary part.
        sizes = [ops.abs(t) if "complex" in str(t.dtype) else t for t in tensors]
        return ops.sqrt(sum(ops.sum(ops.square(ops.cast(s, self.scalar_dtype))) for s in sizes))

    def without_gradient(self, value):
        if isinstance(value, numbers.Real):
            return value
        return ops.stop_gradient(ops.convert_to_tensor(value))
