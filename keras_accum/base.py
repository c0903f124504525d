"""What the optimizers of all hosts share besides the state: counters, config and conversion.

No host is imported here.
"""

import dataclasses

import numpy as np

from keras_accum import arguments, schedule, states
from keras_accum.accumulation import Accumulation
from keras_accum.open_window import OpenWindow
from keras_accum.options import Options, ReadOnly, check_taken
from keras_accum.state import Files
from keras_accum.warn import warn

_NO_ACCUM_ITERS = (
    "This {name} was saved by a class that didn't save accum_iters, so accum_iters=1 is used: an "
    "update on every micro-batch. Give accum_iters when loading, "
    "custom_objects={{'{name}': {name}.with_accum_iters(5)}}, or {remedy}. For a file of a stock "
    "optimizer, use with_accum_iters(5, stock=True)."
)


class Optimizer(Files):
    """A base class that comes before the stock class. Besides the members here, a host defines

    * `_keras`: what the host is called in a message;
    * `_can_reduce_late`: True if the host has all_reduce="per_window".
    """

    reduction, skip_nonfinite = ReadOnly("reduction"), ReadOnly("skip_nonfinite")
    skip_norm, window_transforms = ReadOnly("skip_norm"), ReadOnly("window_transforms")
    gate, all_reduce = ReadOnly("gate"), ReadOnly("all_reduce")

    # How to set accum_iters on a model that was loaded from a file without accum_iters.
    _remedy = "set model.optimizer.accum_iters = 5 before the first step of the loaded model"

    # The function that made this class and its arguments, if pickle can't find the class by name.
    _made_by = None

    def _how_made(self):
        """Return a function that pickle can find and its arguments; its result is this class."""
        return vars(type(self)).get("_made_by") or (_itself, (type(self),))

    def __repr__(self):
        return arguments.representation(self)

    def __str__(self):
        return arguments.description(self, self._keras)

    def __reduce__(self):
        return restored, (*self._how_made(), plain(arguments.config_of(self)), self.get_state())

    def _start_accumulating(self, own, port):
        vars(self)["_accumulation"] = Accumulation(self, Options(**own), port)

    @property
    def _accumulation(self):
        """The one attribute of ours, out of reach of Keras's tracking and of other classes."""
        return vars(self)["_accumulation"]

    @_accumulation.setter
    def _accumulation(self, value):
        check_taken(self._stock_class, ["_accumulation"], ["_accumulation"])

    def _build_window(self):
        """Create counters and accumulators if the model's variables are known."""
        accumulation = self._accumulation
        is_needed = accumulation.options.accumulates and accumulation.window is None
        if is_needed and accumulation.port.variables:
            accumulation.window = OpenWindow(accumulation.port, accumulation.options)

    def _counters(self):
        """Return the window's counters by name, of the built or of the waiting state, if any."""
        if self._pending:
            return self._pending.counters
        window = self._accumulation.window
        return {} if window is None else window.counters

    @property
    def window_position(self):
        """The number of micro-batches in the open window; 0 if no window is open. An int."""
        return self._count("window_position", 0)

    @property
    def accum_iters(self):
        """The number of micro-batches that make one update, None if only the caller closes windows.

        A new value takes effect with the next window. The value 1 can be raised only before the
        first step, because an optimizer that steps with `accum_iters=1` has no accumulators. With a
        function or an AccumulationSchedule, the value is the length of the next window, and can't
        be set.
        """
        options = self._accumulation.options
        if options.is_scheduled:
            return options.length_at(self.completed_updates)
        length = self._count("accum_iters", options.first_length or options.length_at(0))
        return None if length == schedule.ENDLESS else length

    @accum_iters.setter
    def accum_iters(self, accum_iters):
        name = type(self).__name__
        if self._accumulation.options.is_scheduled:
            raise AttributeError(arguments.IS_SCHEDULED.format(accum_iters, name))
        if accum_iters is not None:
            accum_iters = schedule.check_length(accum_iters)
        counter = self._counters().get("accum_iters")
        if counter is not None:
            self._accumulation.port.write(counter, schedule.length_at(accum_iters, 0))
        elif not self._accumulation.has_stepped:
            options = self._accumulation.options
            self._accumulation.options = dataclasses.replace(options, accum_iters=accum_iters)
            self._build_window()
            self._complete_waiting()
        elif accum_iters != 1:
            raise ValueError(arguments.NO_ACCUMULATORS.format(accum_iters, name))

    def _count_window(self):
        """Return position, length and next length of the window, as ints."""
        next_length = schedule.length_at(self.accum_iters, 0)
        position = self.window_position
        return [position, self._count("window_length", next_length), next_length]

    def _count(self, name, default):
        """Return a counter's value, or the default if the counter doesn't exist yet."""
        counter = self._counters().get(name)
        return int(default if counter is None else self._accumulation.port.read(counter))

    def apply_partial_window(self):
        """Close the open window now: make one update from the micro-batches in the window.

        With `reduction="mean"`, the gradient sum is divided by the number of these micro-batches;
        with `reduction="weighted"`, by the sum of their weights. Does nothing if no window is open.
        Call this method between train steps.

        Raises:
            RuntimeError: If the method is called in a traced function.
            ValueError: On Keras 2.0 to 2.3, if several models share the optimizer, and the open
                window belongs to a model other than the one whose train step was built last.
        """
        self._check_is_between_steps()
        if self.window_position == 0:
            return
        self._check_is_built("apply_partial_window")
        self._accumulation.close_window()

    def close_window(self, when=True):
        """Let the next micro-batch close its window, also before the window has its length.

        A train step calls `close_window` each time before `apply_gradients` (or `apply`, or
        `stateless_apply`), also in a traced function (`tf.function`, `jax.jit`): a tensor `when`
        decides anew in each step, without a conditional. The micro-batch is the last one of its
        window. If the micro-batch is dropped (`skip_nonfinite`, `skip_norm`), the window closes
        with the micro-batches that it has. If a LossScaleOptimizer skips the micro-batch, the
        window stays open. In replicas of `tf.distribute`, the window closes if one of the replicas
        says so.

        Args:
            when: Boolean, default True, or a scalar tensor. If false, the window closes as without
                the call.

        Raises:
            RuntimeError: On Keras 2.0 to 2.3, whose train step can't be changed.
            ValueError: When a train step is traced, if the call was outside of the trace. With
                PythonGate.

        Example:

        A window by tokens, in a train step: `optimizer.close_window(tokens >= 100000)`.
        """
        if self._accumulation.options.accumulates:
            self._accumulation.closings.say(when)

    def _check_is_between_steps(self):
        if self._accumulation.port.is_traced():
            raise RuntimeError(
                "`apply_partial_window` is for the time between train steps: it can't be called in "
                "a traced function (tf.function, jax.jit, torch.compile). Call it after the traced "
                "function has returned, or call `close_window` in a train step."
            )

    def weigh(self, weight):
        """Set the weight of the next micro-batch in its window, with `reduction="weighted"`.

        A train step calls `weigh` each time before `apply_gradients` (or `apply`, or
        `stateless_apply`). In `fit`, the callback `MicroBatchWeights` calls `weigh`. A test step
        must not: the next micro-batch would take the weight of the test batch. If the train step
        is traced (`tf.function`, `jax.jit`, `train_on_batch`), call `weigh` in the traced function,
        with a tensor where the weight differs from step to step.

        Args:
            weight: Scalar >= 0, a number or a tensor. The number by which the loss of the
                micro-batch, a mean, was divided; in a `tf.distribute` replica, the number for the
                replica's share. If the value of a tensor is negative, infinite or NaN, the
                gradients of the micro-batch become NaN: `skip_nonfinite` drops the micro-batch,
                and otherwise the update shows the NaN.

        Raises:
            ValueError: If `reduction` isn't "weighted", or if a number is negative, infinite or
                NaN. When a train step is traced, if its weight comes from outside of the trace.
        """
        self._accumulation.weights.say(weight)

    # -- config ------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Return the optimizer of a config from `get_config`, also from Keras 2.0 to 2.3."""
        config = arguments.renamed_config(config)
        if "clipnorm" in config and "decay" in config and "name" not in config:
            # In Keras 2.0 to 2.3, `clipnorm` is the norm of all gradients together.
            config["global_clipnorm"] = config.pop("clipnorm")
        if config.get("all_reduce") == "per_window" and not cls._can_reduce_late:
            warn(f"{arguments.NO_LATE_REDUCTION} It is ignored here.")
            del config["all_reduce"]
        counts_micro_batches = "lr" in config and "accum_iters" not in config
        with arguments.unchecked():
            optimizer = cls._from_stock_config(config, custom_objects)
        if counts_micro_batches:
            remedy = cls._remedy.format(name=cls.__name__)
            warn(_NO_ACCUM_ITERS.format(name=cls.__name__, remedy=remedy))
            optimizer._pending.counts_micro_batches = True
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
    def _check_source(cls, optimizer, kinds):
        if hasattr(optimizer, "inner_optimizer"):
            raise TypeError(
                "`optimizer` is a LossScaleOptimizer: give its `inner_optimizer`, and wrap the "
                f"result in a LossScaleOptimizer. Received: optimizer={optimizer}"
            )
        if type(optimizer) not in kinds and not (
            isinstance(optimizer, Optimizer) and isinstance(optimizer, cls._stock_class)
        ):
            names = sorted({f"{kind.__module__}.{kind.__name__}" for kind in kinds})
            raise TypeError(
                f"`optimizer` must be of the stock class of {cls.__name__}, {' or '.join(names)}, "
                "or an optimizer of this package with the same rule. "
                f"Received: optimizer={optimizer}"
            )

    @classmethod
    def _check_fixed(cls, config):
        """Remove what this class fixes from a config, and raise an error if a value differs."""
        for name, value in cls.fixed.items():
            received = config.pop(name, value)
            if received != value:
                raise ValueError(
                    f"`optimizer` must have {name}={value} to become {cls.__name__}. "
                    f"Received: {name}={received}"
                )

    def _continue_from(self, state, source):
        """Continue from the state of the optimizer from which this optimizer was made."""
        # The constructor has set the learning rate.
        state = {name: value for name, value in state.items() if name != "learning_rate"}
        if isinstance(source, Optimizer):
            state = source._pending.recounted(state, self._accumulation.options.accum_iters)
        if self._accumulation.options.accumulates:
            if "accum_iters" in state:
                length = self._accumulation.options.length_at(int(state["completed_updates"]))
                state["accum_iters"] = np.asarray(length)
        elif state.get("window_position", 0):
            raise ValueError(
                f"`optimizer` is {state['window_position']} micro-batches into a window, and with "
                "accum_iters=1 there are no accumulators: call `apply_partial_window()` first, or "
                "give accum_iters >= 2."
            )
        else:
            state = states.without_window(state)
        self.set_state(state)

    def _check_can_be_stock(self):
        """Raise a ValueError if the stock optimizer can't continue as this optimizer would."""
        more = set(arguments.config_of(self)) - set(type(self).__signature__.parameters)
        more.discard("is_legacy_optimizer")  # Keras 2 adds this key to a config
        if more:
            raise ValueError(
                f"{type(self).__name__} has arguments that no stock optimizer has: "
                f"{', '.join(sorted(more))}. Write a `to_stock` method for {type(self).__name__} "
                "that converts them."
            )
        if self.window_transforms:
            raise ValueError(
                "A stock optimizer has no `window_transforms`: write them into a subclass of "
                f"{self._stock_class.__name__}. Received: {self.window_transforms}"
            )
        if self.window_position:
            raise ValueError(
                f"`to_stock` at window_position={self.window_position}: a stock optimizer can't "
                "keep the gradients of an open window. Close the window first with "
                "`apply_partial_window()`."
            )


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
        optimizer._pending.counts_micro_batches = counts_micro_batches
        return optimizer
