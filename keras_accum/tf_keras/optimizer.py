"""The optimizers that tf_keras calls legacy: constructor and config.

Each class is the stock OptimizerV2 of its name (`keras.optimizers.legacy.*`) with some of its hooks
replaced. With `accum_iters=1` and without `skip_nonfinite`, the stock optimizer's own code runs.
"""

import inspect

import tensorflow as tf

from keras_accum import arguments, docs, family, kernels, states
from keras_accum.tf_keras import layout
from keras_accum.tf_keras.legacy import Hooks, Port
from keras_accum.tf_keras.library import IMPORT_KERAS, keras, legacy
from keras_accum.tf_keras.saving import Saving

# The arguments that stock classes take as **kwargs.
_MORE = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_aggregator", "gradient_transformers")


def _takes_more(stock_class):
    parameters = inspect.signature(stock_class.__init__).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


class AccumulatingOptimizer(Hooks, Saving):
    """The base class of these optimizers; it comes before the stock class.

    `fixed` has the stock arguments whose values a class fixes.
    """

    fixed = {}
    _keras = "Keras 2 on TensorFlow 2 (tf_keras, tf.keras)"
    _can_reduce_late = True
    _port = Port

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            more = dict.fromkeys(_MORE) if _takes_more(cls._stock_class) else {}
            if cls._stock_class is legacy.Nadam:
                more["schedule_decay"] = 0.004
            cls.__signature__ = arguments.signature(cls._stock_class, cls.fixed, more)
            cls.__doc__ = cls.__doc__ or docs.docstring(
                cls.__name__, "tf_keras", IMPORT_KERAS, cls._stock_class
            )

    def __init__(self, *args, **kwargs):
        given = arguments.bind(type(self), args, kwargs, unknown=TypeError)
        own = arguments.pop_own(type(self), given)
        if "learning_rate" in given:
            given["learning_rate"] = arguments.check_learning_rate(
                given["learning_rate"], allowed=(tf.Tensor, tf.Variable)
            )
        if "name" in type(self).__signature__.parameters:
            given.setdefault("name", type(self).__name__)
        if self._stock_class is legacy.Nadam and "decay" in given:
            raise ValueError(
                "`decay` isn't for Nadam, whose learning rate doesn't decay on this Keras. Use "
                "`schedule_decay` for the decay of its momentum, which its config calls decay. "
                f"Received: decay={given['decay']!r}"
            )
        given.update(self.fixed)

        self._start_accumulating(own, Port(self, given))
        super().__init__(**given)
        accumulation = self._accumulation
        family.check_attributes(self, {*vars(self), *self._hyper} - {"_accumulation"})
        if not (accumulation.options.is_stock or accumulation.port.rule):
            family.check_attributes(self, accumulation.port.layout.attributes)
        accumulation.is_ready = True

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

    def get_config(self):
        config = layout.constructor_arguments(self._stock_class, super().get_config())
        for name in self.fixed:
            del config[name]
        if self._initial_decay and self._stock_class is not legacy.Nadam:
            config["decay"] = self._initial_decay  # some classes omit decay from their config
        config.update(arguments.own_config(self))
        return config

    @classmethod
    def _from_stock_config(cls, config, custom_objects):
        config = layout.constructor_arguments(cls._stock_class, config)
        if isinstance(config.get("learning_rate"), dict):  # some classes don't deserialize it
            schedule = keras.optimizers.schedules.deserialize(
                config["learning_rate"], custom_objects=custom_objects
            )
            config = {**config, "learning_rate": schedule}
        return super()._from_stock_config(config, custom_objects)
