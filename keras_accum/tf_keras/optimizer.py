"""The optimizers that tf_keras calls legacy: their variables.

Each class is the stock OptimizerV2 of its name (`keras.optimizers.legacy.*`) with some of its hooks
replaced. With `accum_iters=1` and without `skip_nonfinite`, the stock optimizer's own code runs.
"""

import tensorflow as tf

from keras_accum import kernels, states
from keras_accum.tf_keras import layout
from keras_accum.tf_keras.legacy import Hooks, Port
from keras_accum.tf_keras.library import keras
from keras_accum.tf_keras.saving import Saving


class AccumulatingOptimizer(Hooks, Saving):
    """The base class of these optimizers; it comes before the stock class."""

    _port = Port

    def build(self, var_list):
        """Create the state for these variables, as the first step would.

        The state has the variables in this order. Pass all trainable variables of the model. If
        train steps update only parts of the variables, call `build` before the first step.

        Args:
            var_list: Iterable of trainable variables, in the order of the model.

        Raises:
            ValueError: If train steps were traced that know the variables in a different order.
        """
        var_list = list(var_list)
        with tf.init_scope():
            self._create_all_weights(var_list)
            self._accumulation.port.number_as(var_list)

    def _create_all_weights(self, var_list):
        accumulation, port = self._accumulation, self._accumulation.port
        if accumulation.options.weighs and accumulation.window is not None:
            # A LossScaleOptimizer passes in the weight that `_aggregate_gradients` has appended.
            var_list = [v for v in var_list if v is not accumulation.window.weight]
        kernels.check_no_tensor(var_list)
        with accumulation.state.restored(var_list, [v._unique_id for v in var_list]):
            super()._create_all_weights(var_list)
            window = accumulation.window
            if window is not None and window.missing is None:
                is_partial = len(var_list) < len(port.variables)
                if is_partial or states.MISSING in self._deferred_dependencies:
                    window.add(states.MISSING)

    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        self._accumulation.port.number(var_list)
        self._accumulation.open_window()

    def add_slot(self, var, slot_name, *args, **kwargs):
        # TensorFlow also calls this method, when it reads a checkpoint.
        port = self._accumulation.port
        if slot_name != port.sum_slot:
            return super().add_slot(var, slot_name, *args, **kwargs)
        with port.sum_scope(), port.sum_scope_of(var):
            return super().add_slot(var, slot_name, *args, **kwargs)

    @property
    def weights(self):
        """The variables of the state in the order of files, whatever created a variable first."""
        state = self._accumulation.state
        if not (state.waiting or state.is_built):
            return super().weights
        self._accumulation.port.check_order()
        return state.variables()

    def variables(self):
        return self.weights

    @classmethod
    def _from_stock_config(cls, config, custom_objects):
        config = layout.constructor_arguments(cls._stock_class, config)
        if isinstance(config.get("learning_rate"), dict):  # some classes don't deserialize it
            schedule = keras.optimizers.schedules.deserialize(
                config["learning_rate"], custom_objects=custom_objects
            )
            config = {**config, "learning_rate": schedule}
        return super()._from_stock_config(config, custom_objects)
