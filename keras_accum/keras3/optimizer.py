"""The accumulating optimizer of Keras 3: its arguments and its config.

At `accum_iters=1` it is the stock optimizer altogether.
"""

import importlib

import keras

from keras_accum import arguments, base
from keras_accum.keras3 import stock
from keras_accum.keras3.micro_batch import MicroBatches, SeenByAnUpdate
from keras_accum.keras3.state import State

backend = importlib.import_module(f"keras_accum.keras3.backend_{keras.backend.backend()}")


class AccumulatingOptimizer(
    backend.Backend, MicroBatches, SeenByAnUpdate, State, stock.FromAndToStock
):
    """Everything Keras, for all classes. A class names it before its stock optimizer and has

    * `fixed`: the stock arguments that the class decides itself.
    """

    fixed = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            cls.__signature__ = arguments.signature(
                cls._stock_class, cls.fixed, stock.keywords_of(cls._stock_class)
            )

    def __init__(self, *args, **kwargs):
        given = arguments.bind(type(self), args, kwargs, unknown=ValueError)
        own = arguments.pop_own(type(self), given)
        self.__dict__["decay"] = float(given.pop("decay", 0.0))
        given.setdefault("name", None)
        arguments.check_one_accumulation(own, given.get("gradient_accumulation_steps"))

        super().__init__(**given, **self.fixed)
        base.check_attributes(self, set(vars(self)) - {"decay"})
        self.reduction = own["reduction"]
        self.skip_nonfinite = own["skip_nonfinite"]
        self.gate = own["gate"]
        self.all_reduce = own["all_reduce"]
        self._accum_iters = own["accum_iters"]

    @property
    def _is_stock(self):
        """Whether there is nothing here that the stock optimizer doesn't do."""
        return not (self.decay or self._accumulates or self.skip_nonfinite)

    @property
    def lr(self):
        """Keras 2's name of `learning_rate`."""
        return self.learning_rate

    @lr.setter
    def lr(self, learning_rate):
        self.learning_rate = learning_rate

    def get_config(self):
        config = super().get_config()
        for name in self.fixed:
            del config[name]
        config.update(arguments.own_config(self), decay=self.decay)
        return config

    def __repr__(self):
        return arguments.representation(self)

    def __str__(self):
        return arguments.description(self, "Keras 3")

    def __reduce__(self):
        return base.restored, (*self._how_made(), base.plain(self.get_config()), self.get_state())
