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
    micro_batches,
    monitor,
    of_host,
    partial_window,
    python_gate,
    updates,
    weights,
)
from keras_accum.callbacks.base import introduce  # noqa: E402
from keras_accum.schedule import AccumulationSchedule  # noqa: E402, F401
from keras_accum.states import StateError  # noqa: E402, F401
from keras_accum.tf_keras import models, saving, slices, stock  # noqa: E402
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
    """A callback that needs the model's train function, with any or an accumulating optimizer."""

    _with_any_optimizer = False

    def on_train_begin(self, logs=None):
        found = base.accumulating_in(self.model.optimizer)
        accumulates = any(optimizer._accumulation.options.accumulates for optimizer in found)
        needed = accumulates or self._with_any_optimizer
        if needed and not tf.compat.v1.executing_eagerly_outside_functions():
            raise ValueError(NO_TRAIN_FUNCTION.format(type(self).__name__))
        super().on_train_begin(logs)


def _counts_micro_batches(callback):
    """Return why a callback of this Keras can't count updates, or None.

    These callbacks read or write Keras's own count of batches.
    """
    if isinstance(callback, keras.callbacks.TensorBoard) and callback.update_freq != "epoch":
        return (
            "with an integer `update_freq`, it counts micro-batches by itself on this Keras. Use "
            "update_freq='epoch', or list it beside OnUpdates. "
            f"Received: update_freq={callback.update_freq!r}"
        )
    backup = getattr(keras.callbacks, "BackupAndRestore", ())  # TensorFlow 2.4 has none
    if isinstance(callback, backup) and _saves_in_epochs(callback):
        return (
            "on this Keras, `fit` continues inside an epoch at the micro-batch with the saved "
            "number, which would be the number of an update. Use save_freq='epoch', or list it "
            f"beside OnUpdates. Received: save_freq={callback.save_freq!r}"
        )
    return None


def _saves_in_epochs(backup):
    is_early = getattr(backup, "save_before_preemption", False)
    return is_early or getattr(backup, "save_freq", "epoch") != "epoch"


_without_waiting = tf.distribute.experimental.ParameterServerStrategy
_callback = of_host(keras, "tf_keras", IMPORT_KERAS)
introduce(keras.callbacks.CallbackList)


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
MicroBatches = _callback(
    micro_batches.MicroBatches,
    _InTrainFunction,
    _with_any_optimizer=True,
    _models=keras.Model,
    _step_class=slices.Step,
    _of_optimizer=("minimize", "compute_gradients", "_compute_gradients", "_get_gradients"),
)
OnUpdates = _callback(
    updates.OnUpdates,
    _InTrainFunction,
    _kind=keras.callbacks.Callback,
    _models=keras.Model,
    _refusal=staticmethod(_counts_micro_batches),
)
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
