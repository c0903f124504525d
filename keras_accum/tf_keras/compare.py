"""`compare_with_big_batch` on Keras 2 for TensorFlow 2."""

import tensorflow as tf

from keras_accum import compare
from keras_accum.convert import inner
from keras_accum.tensorflow.compare import device_name, in_full_precision  # noqa: F401
from keras_accum.tf_keras import models
from keras_accum.tf_keras.library import StockOptimizer, keras, key_of, legacy
from keras_accum.tf_keras.optimizers import accumulating

_HAS_NEW_STYLE = StockOptimizer is not legacy.Optimizer


class Recorder(legacy.SGD):
    """Keeps the last update's gradient, and moves no weight. In the legacy style."""

    def _create_slots(self, var_list):
        for variable in var_list:
            self.add_slot(variable, "gradient")

    def list_gradients(self, variables):
        return [self.get_slot(variable, "gradient") for variable in variables]

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

        def list_gradients(self, variables):
            return [self.gradients[self._index_dict[key_of(variable)]] for variable in variables]

        def update_step(self, gradient, variable):
            self.list_gradients([variable])[0].assign(tf.convert_to_tensor(gradient))


class Subject(compare.Subject):
    """A Keras 2 model on TensorFlow 2."""

    read = staticmethod(keras.backend.get_value)

    def get_name(self, variable):
        return variable.name.partition(":")[0]

    def write(self, variable, value):
        variable.assign(value)

    def loss_scale(self):
        optimizer = self.model.optimizer
        return None if inner(optimizer) is optimizer else float(self.read(optimizer.loss_scale))

    def make_recorder(self, options, scale):
        is_legacy = isinstance(inner(self.model.optimizer), legacy.Optimizer)
        kind = Recorder if is_legacy else NewStyleRecorder
        with self.scope():
            recorder = accumulating(kind)(**vars(options))
            models.note(recorder, self.model)
            if scale is None:
                return recorder
            wrap = keras.mixed_precision.LossScaleOptimizer
            return wrap(recorder, dynamic=False, initial_scale=scale)

    def read_gradients(self, recorder):
        return list(map(self.read, recorder.list_gradients(self.model.trainable_variables)))

    def list_states(self):
        model, own = self.model, self.model.optimizer
        found = [*model.weights, *(v for metric in model.metrics for v in metric.variables)]
        for value in vars(model).values():
            if isinstance(value, tf.Variable):  # counters
                found.append(value)
            elif isinstance(value, (StockOptimizer, legacy.Optimizer)) and value is not own:
                variables = value.variables
                found += variables() if callable(variables) else variables
        for layer in model._flatten_layers():
            generators = [getattr(layer, "_random_generator", None), *vars(layer).values()]
            generators = [getattr(g, "_generator", g) for g in generators]
            found += [g.state for g in generators if isinstance(g, tf.random.Generator)]
        return list({id(variable): variable for variable in found}.values())

    def list_random(self):
        return []

    def in_full_precision(self):
        return in_full_precision()
