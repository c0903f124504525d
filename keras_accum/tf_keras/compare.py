"""`compare_with_big_batch` on Keras 2 for TensorFlow 2."""

import contextlib

import numpy as np
import tensorflow as tf

from keras_accum.compare import subject
from keras_accum.compare.verdict import list_some
from keras_accum.convert import accumulating_in, inner
from keras_accum.engine.models import note
from keras_accum.host import check_members
from keras_accum.tensorflow import compare
from keras_accum.tf_keras.host import HOST
from keras_accum.tf_keras.imports import StockOptimizer, keras, key_of, legacy
from keras_accum.tf_keras.optimizers import accumulating

device_name, in_full_precision = compare.device_name, compare.in_full_precision
_HAS_NEW_STYLE = StockOptimizer is not legacy.Optimizer


class Recorder(legacy.SGD):
    """Keeps the last update's gradient, and moves no weight. In the legacy style."""

    def _create_slots(self, var_list):
        for variable in var_list:
            self.add_slot(variable, "gradient")

    def find_gradient(self, variable):
        """Return the variable's gradient, None if it isn't trained by this optimizer."""
        if "gradient" not in self.get_slot_names():
            return None
        with contextlib.suppress(KeyError):
            return self.get_slot(variable, "gradient")

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return self.get_slot(var, "gradient").assign(grad)

    def _resource_apply_sparse_duplicate_indices(self, grad, var, indices, **kwargs):
        slices = tf.IndexedSlices(grad, indices, tf.shape(var, indices.dtype))
        return self._resource_apply_dense(tf.convert_to_tensor(slices), var)


if _HAS_NEW_STYLE:

    class NewStyleRecorder(keras.optimizers.SGD):
        """The same, in the newer style."""

        def build(self, var_list):
            super().build(var_list)
            if not hasattr(self, "gradients"):
                add = self.add_variable_from_reference
                self.gradients = [add(variable, "gradient") for variable in var_list]

        def find_gradient(self, variable):
            index = getattr(self, "_index_dict", {}).get(key_of(variable))
            return None if index is None else self.gradients[index]

        def update_step(self, gradient, variable):
            self.find_gradient(variable).assign(tf.convert_to_tensor(gradient))


def _read_gradient(recorder, variable):
    """Return the variable's gradient, zeros if the recorder doesn't train it."""
    gradient = recorder.find_gradient(variable)
    return np.zeros(variable.shape) if gradient is None else HOST.read(gradient)


_OPTIMIZERS = tuple({StockOptimizer, legacy.Optimizer})
check_members(keras, keras.layers.Layer, ["_set_dtype_policy"])


class Subject(subject.Subject):
    """A Keras 2 model on TensorFlow 2."""

    accessors, host = compare.ACCESSORS, HOST

    def is_optimizer(self, obj):
        return isinstance(obj, _OPTIMIZERS)

    def get_name(self, variable):
        return variable.name.partition(":")[0]

    def loss_scale(self, optimizer):
        return HOST.loss_scale(optimizer)

    def make_recorder(self, optimizer, options, scale):
        is_legacy = isinstance(inner(optimizer), legacy.Optimizer)
        recorder_class = Recorder if is_legacy else NewStyleRecorder
        with self.scope():
            recorder = accumulating(recorder_class)(**vars(options))
            if optimizer is self.compiled:
                note(recorder, self.model)
            if scale is None:
                return recorder
            wrap = keras.mixed_precision.LossScaleOptimizer
            return wrap(recorder, dynamic=False, initial_scale=scale)

    def read_gradients(self, recorder):
        variables = self.model.trainable_variables
        gradients = [_read_gradient(recorder, variable) for variable in variables]
        return [gradient.astype(np.result_type(gradient, "float64")) for gradient in gradients]

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
