"""What the rest of the package knows of Keras 2 on TensorFlow 2."""

import types

import tensorflow as tf

from keras_accum.host import check_members, find_user_classes, is_named
from keras_accum.host.description import Host
from keras_accum.tf_keras.imports import IMPORT_KERAS, keras

# TensorFlow's operations, by their names in Keras 3.
_OPS = types.SimpleNamespace(
    **{"cast": tf.cast, "equal": tf.equal, "not_equal": tf.not_equal, "where": tf.where},
    **{"ones_like": tf.ones_like, "zeros_like": tf.zeros_like, "shape": tf.shape, "size": tf.size},
)


class _Host(Host):
    """Keras 2 on TensorFlow 2."""

    name, keras, ops, import_keras = "tf_keras", keras, _OPS, IMPORT_KERAS
    shape = "keras.backend.shape"
    least_weight = 0.0  # the mean of nothing is NaN here
    flatten, read = staticmethod(tf.nest.flatten), staticmethod(keras.backend.get_value)

    def get_mask(self, output):
        return getattr(output, "_keras_mask", None)  # not every output has a mask

    def set_mask(self, output, mask):
        output._keras_mask = mask

    def find_losses(self, model):
        def replace(loss, function):
            return None if loss is None else function(loss)

        check_members(keras, model, ["compiled_loss"])
        return model.compiled_loss, "_losses", replace

    def list_loss_weights(self, container):
        check_members(keras, container, ["_loss_weights"])
        return container._loss_weights

    def loss_metrics(self, model):
        return model.compiled_loss.metrics

    def make_sum_loss(self, dtype):
        return keras.losses.Loss(reduction="sum")

    def list_added_losses(self, model):
        layers = self.list_layers(model)
        return [loss for layer in layers for loss in layer._eager_losses or layer._losses]

    def find_own_gradients(self, optimizer):
        names = "_compute_gradients", "compute_gradients"  # in the legacy and the newer style
        for base in find_user_classes(type(optimizer)):
            for name in names:
                if name in vars(base):
                    return f"{base.__name__}.{name}"
        return ""

    def has_penalties(self, model):
        return any(layer._callable_losses for layer in self.list_layers(model) if layer.trainable)

    def list_kept(self, layer):
        return [*layer._non_trainable_weights, *self.list_states(layer)]

    def waits_for_steps(self, model):
        servers = tf.distribute.experimental.ParameterServerStrategy
        return not isinstance(model.distribute_strategy, servers)

    def steps_per_execution(self, model):
        # Only TensorFlow 2.13 and newer tune this number.
        is_tuned = getattr(model, "autotune_steps_per_execution", False)
        return "auto" if is_tuned else int(model._steps_per_execution.numpy())

    def counts_by_itself(self, callback):
        if isinstance(callback, keras.callbacks.TensorBoard):
            return callback.update_freq != "epoch"
        # TensorFlow up to 2.10 lacks these arguments.
        arguments = {"save_freq": "epoch", "save_before_preemption": False, **vars(callback)}
        saves_in_epochs = arguments["save_freq"] != "epoch" or arguments["save_before_preemption"]
        return is_named(callback, "BackupAndRestore") and saves_in_epochs


HOST = _Host()
check_members(keras, keras.Model, ["_flatten_layers"])  # called in `fit` and in comparisons
check_members(keras, keras.losses.MeanSquaredError(), ["_fn_kwargs"])  # has the axis of a loss
