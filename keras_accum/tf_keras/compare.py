"""`compare_with_big_batch` on Keras 2 for TensorFlow 2."""

import tensorflow as tf

from keras_accum.compare import subject
from keras_accum.compare.verdict import list_some
from keras_accum.engine.optimizers import accumulating_in, inner
from keras_accum.host import check_members
from keras_accum.tensorflow import compare
from keras_accum.tf_keras.host import HOST
from keras_accum.tf_keras.imports import StockOptimizer, keras, legacy
from keras_accum.tf_keras.optimizers import accumulating

device_name, in_full_precision = compare.device_name, compare.in_full_precision
_OPTIMIZERS = tuple({StockOptimizer, legacy.Optimizer})
check_members(keras, keras.layers.Layer, ["_set_dtype_policy"])


class Subject(subject.Subject):
    """A Keras 2 model on TensorFlow 2."""

    variables, generators, host = (tf.Variable,), (tf.random.Generator,), HOST

    def is_optimizer(self, obj):
        return isinstance(obj, _OPTIMIZERS)

    def get_name(self, variable):
        return variable.name.partition(":")[0]

    def adam(self, optimizer):
        is_legacy = isinstance(inner(optimizer), legacy.Optimizer)
        return accumulating(legacy.Adam if is_legacy else keras.optimizers.Adam)

    def make_stand_in(self, optimizer, options):
        stand_in = super().make_stand_in(optimizer, options)
        if inner(optimizer) is optimizer:
            return stand_in
        # A `train_step` of one's own may call its methods, but float32 needs no scale.
        wrap = keras.mixed_precision.LossScaleOptimizer
        return wrap(stand_in, dynamic=False, initial_scale=1.0)

    def compute_in_float32(self, layer):
        layer._set_dtype_policy("float32")

    def draws(self, layer):
        return getattr(layer, "_random_generator", None) is not None

    def list_notes(self, optimizers, size):
        names = list_some(compare.list_embeddings(self._list_layers(), keras))
        ours = [inner for optimizer in optimizers for inner in accumulating_in(optimizer)]
        return compare.note_clipping(names, ours, "Clip no embeddings, or accept it.")

    def running(self):
        return compare.running()
