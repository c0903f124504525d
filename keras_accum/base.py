"""The base class of every accumulating optimizer: constructor, config and conversion.

No host is imported here.
"""

import sys

from keras_accum import arguments, convert, docs, schedule
from keras_accum.accumulation import Accumulation
from keras_accum.members import Members
from keras_accum.options import Options, check_taken
from keras_accum.warn import warn

_NO_ACCUM_ITERS = (
    "This {name} was saved by a class that didn't save accum_iters, so accum_iters=1 is used: an "
    "update on every micro-batch. Give accum_iters when loading, "
    "custom_objects={{'{name}': {name}.with_accum_iters(5)}}, or {remedy}. For a file of a stock "
    "optimizer, use with_accum_iters(5, stock=True)."
)


class Optimizer(Members):
    """A base class that comes before the stock class.

    `_port` is the class of the Keras's ports. `fixed` has the stock arguments whose values a class
    fixes.
    """

    _port, fixed = None, {}
    # The function that made this class and its arguments, if pickle can't find the class by name.
    _made_by = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        stock = cls.__bases__[-1]
        if hasattr(cls, "_stock_class") or issubclass(stock, Optimizer):
            return
        cls._stock_class, port = stock, cls._port
        cls.__signature__ = arguments.signature(stock, cls.fixed, port.keywords_of(stock))
        cls.__doc__ = cls.__doc__ or docs.docstring(
            cls.__name__, port.host, port.import_keras, stock
        )

    def __init__(self, *args, **kwargs):
        cls, port = type(self), self._port
        kwargs = {name: kwargs[name] for name in kwargs if name not in port.not_arguments}
        given = arguments.bind(cls, args, kwargs, unknown=port.unknown_argument)
        own = arguments.pop_own(cls, given)
        port.prepare(cls, own, given)
        given.update(self.fixed)
        vars(self)["_accumulation"] = Accumulation(self, Options(**own), port(self, given))
        super().__init__(**given)
        self._accumulation.port.check_constructed()
        self._accumulation.is_ready = True

    def _how_made(self):
        """Return a function that pickle can find and its arguments; its result is this class."""
        cls = type(self)
        is_found = getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls
        return (not is_found and vars(cls).get("_made_by")) or (_itself, (cls,))

    def __repr__(self):
        return arguments.representation(self)

    def __format__(self, specification):
        # In f-strings, as in Keras's error about an optimizer of another Keras.
        return format(arguments.description(self, self._port.title), specification)

    def __reduce__(self):
        return restored, (*self._how_made(), plain(arguments.config_of(self)), self.get_state())

    @property
    def _accumulation(self):
        """The one attribute of ours, out of reach of Keras's tracking and of other classes."""
        return vars(self)["_accumulation"]

    @_accumulation.setter
    def _accumulation(self, value):
        check_taken(self._stock_class, ["_accumulation"], ["_accumulation"])

    # -- config ------------------------------------------------------------------------------------

    def get_config(self):
        config = self._port.config_of(self, super().get_config())
        for name in self.fixed:
            config.pop(name, None)
        return {**config, **arguments.own_config(self)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Return the optimizer of a config from `get_config`, also from Keras 2.0 to 2.3."""
        config = arguments.renamed_config(config)
        if "clipnorm" in config and "decay" in config and "name" not in config:
            # In Keras 2.0 to 2.3, `clipnorm` is the norm of all gradients together.
            config["global_clipnorm"] = config.pop("clipnorm")
        if config.get("all_reduce") == "per_window" and not cls._port.can_reduce_late:
            warn(f"{arguments.NO_LATE_REDUCTION} It is ignored here.")
            del config["all_reduce"]
        counts_micro_batches = "lr" in config and "accum_iters" not in config
        with arguments.unchecked():
            optimizer = cls._from_stock_config(config, custom_objects)
        if counts_micro_batches:
            remedy = cls._port.remedy.format(name=cls.__name__)
            warn(_NO_ACCUM_ITERS.format(name=cls.__name__, remedy=remedy))
            optimizer._accumulation.state.waiting.counts_micro_batches = True
        return optimizer

    @classmethod
    def _like(cls, config, given=()):
        """Return an optimizer with this config, in which the given arguments replace others."""
        arguments.check_ranges(cls, dict(given))
        with arguments.unchecked():
            return cls._from_arguments({**config, **dict(given)})

    @classmethod
    def _from_arguments(cls, config):
        return cls(**config)

    @classmethod
    def _from_stock_config(cls, config, custom_objects):
        # Somebody else's `from_config` may take nothing but the config.
        more = () if custom_objects is None else (custom_objects,)
        return super().from_config(config, *more)

    @classmethod
    def with_accum_iters(cls, accum_iters, stock=False):
        """Return this class for `custom_objects`, to load a file that doesn't hold `accum_iters`.

        Files of the AdamAccumulate class that is copied across the web don't hold `accum_iters`.
        These files count micro-batches, and the count is converted to updates. Files of stock
        optimizers of Keras 2 count updates.

        Args:
            accum_iters: Integer >= 1. The number of micro-batches that make one update.
            stock: Boolean, default False. True if a stock optimizer wrote the file. Keras 2 writes
                the names of stock optimizers in lower case.

        Returns:
            An object to put into `custom_objects`.

        Raises:
            TypeError: If `accum_iters` isn't a number.
            ValueError: If `accum_iters` is out of its range.

        Example:

        >>> copied = {"AdamAccumulate": AdamAccumulate.with_accum_iters(5)}
        >>> model = load_model("copied_class.h5", custom_objects=copied)
        >>> stock = {"adam": AdamAccumulate.with_accum_iters(5, stock=True)}
        >>> model = load_model("stock.h5", custom_objects=stock)
        """
        return _Loader(cls, schedule.check_length(accum_iters), stock)

    # -- stock optimizers --------------------------------------------------------------------------

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """Return an optimizer of this class with the arguments and the state of another optimizer.

        Args:
            optimizer: A stock optimizer with the same rule, on Keras 3 also with Keras's own
                `gradient_accumulation_steps`, or an optimizer of this package with the same rule.
                The optimizer isn't changed. On Keras 2 with TensorFlow 2, a class of the legacy
                style also takes an optimizer that isn't legacy, without `weight_decay` and
                `use_ema`. An RMSprop that isn't legacy has epsilon under the root, so its updates
                differ from a legacy RMSprop's without momentum.
            **arguments: Constructor arguments that replace the optimizer's, for example
                `accum_iters`.

        Returns:
            The new optimizer.

        Raises:
            TypeError: If the optimizer has a different rule or is a LossScaleOptimizer.
            ValueError: If the optimizer uses an argument that this class doesn't have, if an
                argument that this class fixes has a different value, or if the optimizer has an
                open window and the new `accum_iters` is 1.

        Example:

        >>> from keras_accum import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        return convert.from_optimizer(cls, optimizer, arguments)

    def to_stock(self):
        """Return the stock optimizer with the same arguments and state, to use without keras_accum.

        The stock optimizer is built for the same variables: compile the model with it. This
        optimizer isn't changed. On Keras 3, `decay` becomes an InverseTimeDecay schedule, which
        gives the same rate.

        Returns:
            The stock optimizer.

        Raises:
            ValueError: If a window is open, if the class has arguments that the stock optimizer
                doesn't have, or if the stock optimizer can't have this `decay`.
        """
        return convert.to_stock(self)


def inner(optimizer):
    """Return the inner optimizer of a LossScaleOptimizer, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def plain(value):
    """Return a config with plain containers in place of Keras's tracking containers."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value)) if isinstance(value, tuple) else list(map(plain, value))
    return value


def _itself(cls):
    return cls


def restored(make, arguments, config, state):
    """Return an unpickled optimizer of the class `make(*arguments)`."""
    optimizer = make(*arguments).from_config(config)
    optimizer.set_state(state)
    return optimizer


class _Loader:
    """The result of `with_accum_iters`: the part of a class that loading needs."""

    def __init__(self, cls, accum_iters, stock):
        self.cls = cls
        self.accum_iters = accum_iters
        self.stock = stock
        self.__name__ = cls.__name__

    def __repr__(self):
        more = f"{self.accum_iters}, stock=True" if self.stock else self.accum_iters
        return (
            f"{self.__name__}.with_accum_iters({more})  # for `custom_objects`, to load a file; "
            f"`compile` needs an optimizer: {self.__name__}(accum_iters={self.accum_iters})"
        )

    def from_config(self, config, custom_objects=None):
        if config.get("accum_iters", self.accum_iters) != self.accum_iters:
            raise ValueError(
                f"with_accum_iters({self.accum_iters}) for a file that holds "
                f"accum_iters={config['accum_iters']}: load the file with {self.__name__} itself, "
                "and then set `model.optimizer.accum_iters`."
            )
        counts_micro_batches = "accum_iters" not in config and not self.stock
        config = {**config, "accum_iters": self.accum_iters}
        optimizer = self.cls.from_config(config, custom_objects)
        optimizer._accumulation.state.waiting.counts_micro_batches = counts_micro_batches
        return optimizer
