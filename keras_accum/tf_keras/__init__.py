"""The optimizers for Keras 2 on TensorFlow 2: `tf_keras`, and `tf.keras` up to TensorFlow 2.15."""

from keras_accum import host

host.import_keras_2()  # first, because its error is the clearest

import tensorflow as tf  # noqa: E402

from keras_accum import family, names, train_functions  # noqa: E402
from keras_accum.callbacks import (  # noqa: E402
    base,
    caveats,
    epochs,
    grow,
    monitor,
    of_host,
    partial_window,
    python_gate,
    weights,
)
from keras_accum.schedule import AccumulationSchedule  # noqa: E402, F401
from keras_accum.states import StateError  # noqa: E402, F401
from keras_accum.tf_keras import models, saving, stock  # noqa: E402
from keras_accum.tf_keras.library import IMPORT_KERAS, keras  # noqa: E402
from keras_accum.tf_keras.optimizer import AccumulatingOptimizer  # noqa: E402, F401
from keras_accum.tf_keras.port import NO_TRAIN_FUNCTION  # noqa: E402
from keras_accum.tf_keras.stock import accumulating  # noqa: E402, F401

globals().update(stock.ready())  # SGDAccumulate, ...

saving.keep_state_in_keras_files()
saving.compile_loaded_models_as_they_were()
saving.keep_state_inside_loss_scaling()
models.remember_compiled_models()
family.hand_on(keras.mixed_precision.LossScaleOptimizer)


class _InTrainFunction:
    """A callback that needs the model's train function."""

    def on_train_begin(self, logs=None):
        found = base.accumulating_in(self.model.optimizer)
        accumulates = any(optimizer._accumulation.options.accumulates for optimizer in found)
        if accumulates and not tf.compat.v1.executing_eagerly_outside_functions():
            raise ValueError(NO_TRAIN_FUNCTION.format(type(self).__name__))
        super().on_train_begin(logs)


_without_waiting = tf.distribute.experimental.ParameterServerStrategy
_callback = of_host(keras, "tf_keras", IMPORT_KERAS)
monitor.introduce(keras.callbacks.CallbackList)


def _reads_steps(model):
    """True if Python can read what a train step has written when Keras calls the callbacks."""
    strategy = model.distribute_strategy
    return tf.compat.v1.executing_eagerly_outside_functions() and not isinstance(
        strategy, _without_waiting
    )


caveats.watch(keras, tf.nest.flatten, _reads_steps)

AccumulateByEpoch = _callback(epochs.AccumulateByEpoch)
ApplyPartialWindow = _callback(partial_window.ApplyPartialWindow)
AccumulationMonitor = _callback(monitor.AccumulationMonitor, _InTrainFunction)
GrowWithNoiseScale = _callback(grow.GrowWithNoiseScale)
PythonGate = _callback(
    python_gate.PythonGate,
    _InTrainFunction,
    _picker=train_functions.Picker,
    _without_waiting=_without_waiting,
)
MicroBatchWeights = _callback(
    weights.MicroBatchWeights,
    _ops=tf,
    _sum=staticmethod(tf.reduce_sum),
    _flatten=staticmethod(tf.nest.flatten),
    _mask=staticmethod(lambda output: getattr(output, "_keras_mask", None)),
)

__getattr__ = names.fallback(__name__)
