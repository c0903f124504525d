"""The optimizers for Keras 2 on TensorFlow 2: `tf_keras`, and `tf.keras` up to TensorFlow 2.15."""

import tensorflow as tf

from keras_accum import base, names, train_functions
from keras_accum.callbacks import monitor, partial_window, python_gate, weights
from keras_accum.states import StateError  # noqa: F401
from keras_accum.tf_keras import models, saving, stock
from keras_accum.tf_keras.library import IMPORT_KERAS, keras
from keras_accum.tf_keras.optimizer import AccumulatingOptimizer  # noqa: F401
from keras_accum.tf_keras.port import NO_TRAIN_FUNCTION
from keras_accum.tf_keras.stock import accumulating  # noqa: F401

globals().update(stock.ready())  # SGDAccumulate, ...

saving.keep_state_in_keras_files()
saving.compile_loaded_models_as_they_were()
saving.keep_state_inside_loss_scaling()
models.remember_compiled_models()
base.hand_on(keras.mixed_precision.LossScaleOptimizer)


class ApplyPartialWindow(partial_window.ApplyPartialWindow, keras.callbacks.Callback):
    __doc__ = partial_window.ApplyPartialWindow.__doc__.format(
        host="tf_keras", import_keras=IMPORT_KERAS
    )


class MicroBatchWeights(weights.MicroBatchWeights, keras.callbacks.Callback):
    __doc__ = weights.MicroBatchWeights.__doc__.format(host="tf_keras", import_keras=IMPORT_KERAS)
    _ops, _sum, _flatten = tf, staticmethod(tf.reduce_sum), staticmethod(tf.nest.flatten)

    @staticmethod
    def _mask(output):
        return getattr(output, "_keras_mask", None)


class _InTrainFunction:
    """A callback that needs the model's train function."""

    def on_train_begin(self, logs=None):
        accumulation = getattr(base.inner(self.model.optimizer), "_accumulation", None)
        accumulates = accumulation is not None and accumulation.options.accumulates
        if accumulates and not tf.compat.v1.executing_eagerly_outside_functions():
            raise ValueError(NO_TRAIN_FUNCTION.format(type(self).__name__))
        super().on_train_begin(logs)


class AccumulationMonitor(_InTrainFunction, monitor.AccumulationMonitor, keras.callbacks.Callback):
    __doc__ = monitor.AccumulationMonitor.__doc__.format(host="tf_keras", import_keras=IMPORT_KERAS)


class PythonGate(_InTrainFunction, python_gate.PythonGate, keras.callbacks.Callback):
    __doc__ = python_gate.PythonGate.__doc__.format(host="tf_keras", import_keras=IMPORT_KERAS)
    _picker = train_functions.Picker


__getattr__ = names.fallback(__name__)
