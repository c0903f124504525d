"""The accumulating optimizer of Keras 3: its arguments and its config.

With `accum_iters=1`, and without `decay` and `skip_nonfinite`, the stock optimizer's own code runs.
"""

from keras_accum import arguments, family
from keras_accum.keras3 import stock
from keras_accum.keras3.hooks import Hooks, backend
from keras_accum.keras3.state import State
from keras_accum.options import ReadOnly


class AccumulatingOptimizer(Hooks, State, stock.FromAndToStock):
    """The base class of all optimizers on Keras 3; it comes before the stock class.

    `fixed` has the stock arguments whose values a class fixes.
    """

    fixed = {}
    _keras = "Keras 3"
    _can_reduce_late = backend.Port.can_reduce_late
    decay = ReadOnly("decay")

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            cls.__signature__ = arguments.signature(
                cls._stock_class, cls.fixed, arguments.keywords_of(cls._stock_class)
            )

    def __init__(self, *args, **kwargs):
        given = arguments.bind(type(self), args, kwargs, unknown=ValueError)
        own = arguments.pop_own(type(self), given)
        own["decay"] = float(given.pop("decay", 0.0))
        arguments.name_after(type(self), None, given)
        arguments.check_one_accumulation(own, given.get("gradient_accumulation_steps"))

        self._start_accumulating(own, backend.Port(self))
        super().__init__(**given, **self.fixed)
        family.check_attributes(self, {*vars(self)} - {"_accumulation"})
        self._accumulation.is_ready = True

    @property
    def gradient_accumulation_steps(self):
        """Keras's own accumulation. None, except where the constructor was given a number."""
        return self._steps_of_keras

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps):
        if self._accumulation.is_ready:
            raise AttributeError(
                "`gradient_accumulation_steps`, Keras's own accumulation, can't be set on an "
                "optimizer that accumulates: set `accum_iters`. "
                f"Received: gradient_accumulation_steps={steps!r}"
            )
        self._steps_of_keras = steps

    @property
    def lr(self):
        """Another name for `learning_rate`, from Keras 2."""
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

