"""Checkpoints, copies and `.keras` files: the hooks of TensorFlow and Keras."""

import copy
import functools
import importlib

import tensorflow as tf

from keras_accum import base
from keras_accum.arguments import config_of
from keras_accum.open_window import OpenWindow
from keras_accum.tf_keras.library import keras, legacy
from keras_accum.tf_keras.state import Checkpointed


class Saving(Checkpointed):
    """The part of an optimizer that is saved, restored and copied."""

    def get_slot_names(self):
        """Return the names of the slots. TensorFlow calls this method when it saves."""
        self._check_nothing_waits()
        return super().get_slot_names()

    @property
    def _update_uid(self):
        return super()._update_uid

    @_update_uid.setter
    def _update_uid(self, uid):
        # The counters must exist before TensorFlow looks for variables to restore.
        super(Saving, type(self))._update_uid.fset(self, uid)
        accumulation = self._accumulation
        if accumulation.options.accumulates and accumulation.window is None:
            with tf.init_scope():
                accumulation.window = OpenWindow(accumulation.port, accumulation.options)

    def _create_or_restore_slot_variable(
        self, slot_variable_position, slot_name, variable, *args, **kwargs
    ):
        # TensorFlow is about to restore a slot. Create all slots first, in the order of the
        # checkpoint's model.
        if tf.executing_eagerly():
            objects = slot_variable_position.checkpoint.object_by_proto_id.values()
            models = [
                found
                for found in objects
                if isinstance(found, keras.Model)
                and found.built
                and base.inner(found.optimizer) is self
            ]
            for model in models:
                self._create_all_weights(model.trainable_variables)
            if not models:
                self._create_slots([variable])
        return super()._create_or_restore_slot_variable(
            slot_variable_position, slot_name, variable, *args, **kwargs
        )

    def __reduce__(self):
        return base.restored, (*self._how_made(), config_of(self), self.get_state())

    def __deepcopy__(self, memo):
        memo.update({id(v): v for v in self._accumulation.port.variables})  # the model's
        # Symbolic tensors that a stock optimizer keeps from the last trace can't be copied.
        traced = [v for v in vars(self).values() if tf.is_tensor(v) and not hasattr(v, "numpy")]
        memo.update({id(tensor): tensor for tensor in traced})
        new = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self._distribution_strategy)] = self._distribution_strategy  # can't be copied
        vars(new).update(copy.deepcopy(vars(self), memo))
        return new


def keep_state_in_keras_files():
    """Make `.keras` files hold the state of this package's optimizers.

    From TensorFlow 2.12 to tf_keras 2.21, the writer and the reader of these files ignore every
    OptimizerV2. Both call a function that selects the objects to visit: the patched function also
    selects our optimizers.
    """
    package = keras.Model.__module__.rpartition(".engine.")[0]
    try:
        saving_lib = importlib.import_module(f"{package}.saving.saving_lib")
        visits = saving_lib._is_keras_trackable
    except (ImportError, AttributeError):  # before TensorFlow 2.12
        return
    saving_lib._is_keras_trackable = lambda obj: (
        visits(obj)
        or isinstance(obj, base.Optimizer)
        or isinstance(obj, legacy.Optimizer)  # a LossScaleOptimizer
        and isinstance(getattr(obj, "inner_optimizer", None), base.Optimizer)
    )


def compile_loaded_models_as_they_were():
    """Make `.keras` files hold the model's optimizer as it is, and build it on loading.

    Without this patch, loading builds all optimizers except legacy ones, and a file omits the
    LossScaleOptimizer in which `compile` wraps an optimizer under the policy mixed_float16.
    """
    get_compile_config = getattr(keras.Model, "get_compile_config", None)
    if get_compile_config is None:  # before TensorFlow 2.12
        return
    compile_from_config = keras.Model.compile_from_config

    @functools.wraps(get_compile_config)
    def get_config(model):
        config = get_compile_config(model)
        if config and isinstance(base.inner(model.optimizer), base.Optimizer):
            config["optimizer"] = keras.saving.serialize_keras_object(model.optimizer)
        return config

    @functools.wraps(compile_from_config)
    def compile_and_build(model, config):
        compile_from_config(model, config)
        optimizer = base.inner(getattr(model, "optimizer", None))
        if isinstance(optimizer, base.Optimizer) and model.built:
            optimizer.build(model.trainable_variables)

    keras.Model.get_compile_config = get_config
    keras.Model.compile_from_config = compile_and_build


def keep_state_inside_loss_scaling():
    """Make a LossScaleOptimizer around a new-style optimizer of this package save and load it.

    Keras's own wrapper looks for attributes that it doesn't have: `.h5` files are loaded without
    the state, and a `.keras` file may not be loaded at all. In `.keras` files, the inner optimizer
    is saved and loaded by itself.
    """
    module = importlib.import_module(keras.mixed_precision.LossScaleOptimizer.__module__)
    wrapper = getattr(module, "LossScaleOptimizerV3", None)
    if wrapper is None:  # before TensorFlow 2.11
        return

    def patch(name, for_ours):
        stock = getattr(wrapper, name, None)
        if stock is None:
            return

        @functools.wraps(stock)
        def patched(self, *args):
            is_ours = isinstance(self.inner_optimizer, base.Optimizer)
            return for_ours(self, *args) if is_ours else stock(self, *args)

        setattr(wrapper, name, patched)

    patch("set_weights", lambda self, weights: self.inner_optimizer.set_weights(weights))
    patch("save_own_variables", lambda self, store: None)
    patch("load_own_variables", lambda self, store: None)
