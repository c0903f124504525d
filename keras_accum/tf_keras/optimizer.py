"""The optimizers that tf_keras calls legacy: constructor and config.

Each class is the stock OptimizerV2 of its name (`keras.optimizers.legacy.*`) with some of its hooks
replaced. With `accum_iters=1` and without `skip_nonfinite`, the stock optimizer's own code runs.
"""

import tensorflow as tf

from keras_accum import arguments, docs, family
from keras_accum.tf_keras import layout
from keras_accum.tf_keras.legacy import Hooks, Port
from keras_accum.tf_keras.legacy_state import LegacyState
from keras_accum.tf_keras.library import IMPORT_KERAS, keras, legacy
from keras_accum.tf_keras.moving import Moving
from keras_accum.tf_keras.saving import Saving

_NEWER = (
    "`{name}` is an argument of the optimizers that aren't legacy: use `AdamWAccumulate`, or "
    "`accumulating(keras.optimizers.Adam)` and its like."
)
_OF_NEWER = ("weight_decay", "use_ema", "ema_momentum", "ema_overwrite_frequency", "jit_compile")

# What Keras's base class takes as **kwargs.
_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


class AccumulatingOptimizer(Hooks, LegacyState, Saving, Moving):
    """The base class of these optimizers; it comes before the stock class."""

    # What to say of arguments that classes of the other style have.
    _elsewhere = {name: _NEWER.format(name=name) for name in _OF_NEWER}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            more = arguments.keywords_of(cls._stock_class)
            if "gradient_aggregator" in more:  # the base class's
                more = {**dict.fromkeys(_CLIPS), **more}
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
        arguments.name_after(type(self), type(self).__name__, given)
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
