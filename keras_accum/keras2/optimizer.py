"""The accumulating optimizer of Keras 2: its arguments and its config."""

import numbers

import keras

from keras_accum import arguments, docs, family
from keras_accum.keras2 import stock
from keras_accum.keras2.port import Port
from keras_accum.keras2.state import State, shapes_of

K = keras.backend


class AccumulatingOptimizer(stock.FromAndToStock, State):
    """The base class of these optimizers; it comes before the stock class. A class may define

    * `_rule()`: the rule that replaces the stock optimizer's own code in an update;
    * `fixed`: the stock arguments whose values the class fixes.
    """

    fixed = {}
    _keras = "standalone Keras 2"
    _can_reduce_late = False
    _remedy = "compile the loaded model with {name}.from_optimizer(model.optimizer, accum_iters=5)"

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            names = ["learning_rate", *stock.keywords_of(cls._stock_class)]
            more = {name: None for name in names if name not in (*cls.fixed, *arguments.OWN)}
            cls.__signature__ = arguments.signature(cls._stock_class, cls.fixed, more)
            cls.__doc__ = cls.__doc__ or docs.docstring(
                cls.__name__, "keras2", "import keras", cls._stock_class
            )

    def __init__(self, *args, **kwargs):
        given = arguments.bind(type(self), args, kwargs, unknown=TypeError)
        own = arguments.pop_own(type(self), given)
        if own["reduction"] == "weighted":
            raise ValueError(
                "reduction='weighted' isn't available on Keras 2.0 to 2.3, whose train step has no "
                "place for a weight: use reduction='mean', or a loss that sums and "
                "reduction='sum'."
            )
        if not stock.has_decay(self._stock_class):
            own["decay"] = float(given.pop("decay", 0.0))
        if "learning_rate" in given:
            rate = arguments.check_number("learning_rate", given.pop("learning_rate"))
            given[stock.rate_name_of(self._stock_class)] = rate
        given.update(_clips(given))
        given.update(self.fixed)

        self._start_accumulating(own, Port(self, given))
        super().__init__(**given)
        family.check_attributes(self, {*vars(self)} - {"_accumulation"})
        stock.check_variables(self)
        self._accumulation.is_ready = True

    def get_updates(self, loss, params):
        """Return a list with the operation that makes the step of one micro-batch."""
        port = self._accumulation.port
        # A layer in two parts of a model is in this Keras's list twice.
        params = list({variable.name: variable for variable in params}.values())
        with port.unclipped():
            gradients = keras.optimizers.Optimizer.get_gradients(self, loss, params)
        state = self._take_waiting(shapes_of(params))
        self._accumulation.has_stepped = True
        port.start_model(params)
        self.updates = [port.train_step(loss, gradients, params)]
        if state is not None:
            self._write_state(state)
        self.weights = list(self._state_variables().values())
        return self.updates

    def close_window(self, when=True):
        """Not available on this Keras, whose train step can't be changed.

        Args:
            when: Anything.

        Raises:
            RuntimeError: In any case. Between train steps, call `apply_partial_window()`.
        """
        raise RuntimeError(
            "`close_window` isn't available on Keras 2.0 to 2.3, whose train step can't be "
            "changed: call `apply_partial_window()` between train steps."
        )

    @property
    def learning_rate(self):
        """The learning rate, a variable. A number that is assigned applies to the next update."""
        return self._accumulation.port.rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        port = self._accumulation.port
        if isinstance(learning_rate, numbers.Real) and port.rate is not None:
            K.set_value(port.rate, arguments.check_number("learning_rate", learning_rate))
        else:
            port.rate = learning_rate  # the stock constructor assigns the variable

    lr = learning_rate

    @classmethod
    def _from_stock_config(cls, config, custom_objects):
        return cls(**config)

    def get_config(self):
        config = super().get_config()
        for name in self.fixed:
            del config[name]
        if "clipnorm" in config:  # the other hosts call this norm `global_clipnorm`
            config["global_clipnorm"] = config.pop("clipnorm")
        if not stock.has_decay(self._stock_class):
            config["decay"] = self._accumulation.options.decay
        config.update(arguments.own_config(self))
        return config


def _clips(given):
    """Take the stock arguments for clipping out of `given`, checked."""
    names = "clipnorm", "clipvalue", "global_clipnorm"
    clips = {n: given.pop(n) for n in names if n in given}
    clips = {n: float(value) for n, value in clips.items() if value is not None}
    if "global_clipnorm" in clips:
        if "clipnorm" in clips:
            raise ValueError(
                "`clipnorm` and `global_clipnorm` are the same on this Keras, the norm of all "
                f"gradients together: give one of them. Received: {clips}"
            )
        clips["clipnorm"] = clips.pop("global_clipnorm")
    return clips
