"""What the optimizers of all hosts share: counters, the state, loading and conversion.

No host is imported here. Each host reads a state from its variables and writes a state to them.
"""

import dataclasses
from functools import partial

import numpy as np

from keras_accum import arguments, states
from keras_accum.accumulation import Accumulation
from keras_accum.open_window import OpenWindow
from keras_accum.options import Options, ReadOnly, check_taken
from keras_accum.warn import warn

_NO_ACCUM_ITERS = (
    "This {name} was saved by a class that didn't save accum_iters, so accum_iters=1 is used: an "
    "update on every micro-batch. Give accum_iters when loading, "
    "custom_objects={{'{name}': {name}.with_accum_iters(5)}}, or {remedy}. For a file of a stock "
    "optimizer, use with_accum_iters(5, stock=True)."
)

_NO_COUNT = (
    "This file doesn't hold the number of updates that RMSprop had made. With `decay`, the "
    "learning rate of {name} starts again at its initial value. If you know the number n of "
    "updates, set it: "
    "`optimizer.set_state({{**optimizer.get_state(), 'completed_updates': n}})`."
)

class Optimizer:
    """A base class that comes before the stock class. Besides the members here, a host defines

    * `_shared_variables()`: the variables that exist before `build`, by their names in a state;
    * `_add_waiting(name, array)`: create a variable that holds this array;
    * `_keras`: what the host is called in a message;
    * `_can_reduce_late`: True if the host has all_reduce="per_window";
    * `_is_built`: True if slots and accumulators exist;
    * `_rule_slots`, `_rule_scalars`: the names of what the rule keeps per variable and once for all
      variables, in the order of the host's files;
    * `_list_names(n, stock)`: the names of the state for n variables, or of the stock optimizer's
      state, in the order of the host's files;
    * `_layout()`: the names and shapes of the built state;
    * `_rate_state()`: the learning rate as part of a state, if the learning rate is a number;
    * `_read_state()`: the built state, or else the waiting state;
    * `_write_state(state)`: write all variables;
    * `_write_shared(state)`: write those values of a state whose variables exist already.
    """

    reduction, skip_nonfinite = ReadOnly("reduction"), ReadOnly("skip_nonfinite")
    gate, all_reduce = ReadOnly("gate"), ReadOnly("all_reduce")

    # How to set accum_iters on a model that was loaded from a file without accum_iters.
    _remedy = "set model.optimizer.accum_iters = 5 before the first step of the loaded model"

    # The initial values of slots and scalars that don't start at zero, by their names in a state.
    _initial_values = {}

    # The function that made this class and its arguments, if pickle can't find the class by name.
    _made_by = None

    def _how_made(self):
        """Return a function that pickle can find and its arguments; its result is this class."""
        return vars(type(self)).get("_made_by") or (_itself, (type(self),))

    @property
    def _rule_name(self):
        """The name of the rule in a state. AdamW is Adam with a different weight decay."""
        if getattr(self, "amsgrad", False):
            return "AMSGrad"
        name = self._stock_class.__name__
        return {"AdamW": "Adam"}.get(name, name)

    def __repr__(self):
        return arguments.representation(self)

    def __str__(self):
        return arguments.description(self, self._keras)

    def __reduce__(self):
        return restored, (*self._how_made(), plain(self.get_config()), self.get_state())

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
        """The number of micro-batches that make one update. An int.

        A new value takes effect with the next window. The value 1 can be raised only before the
        first step, because an optimizer that steps with `accum_iters=1` has no accumulators.
        """
        return self._count("accum_iters", self._accumulation.options.accum_iters)

    @accum_iters.setter
    def accum_iters(self, accum_iters):
        accum_iters = arguments.check_accum_iters(accum_iters)
        counter = self._counters().get("accum_iters")
        if counter is not None:
            self._accumulation.port.write(counter, accum_iters)
        elif not self._accumulation.has_stepped:
            options = self._accumulation.options
            self._accumulation.options = dataclasses.replace(options, accum_iters=accum_iters)
            self._build_window()
            self._complete_waiting()
        elif accum_iters != 1:
            name = type(self).__name__
            raise ValueError(arguments.NO_ACCUMULATORS.format(accum_iters, name))

    def _count_window(self):
        """Return position, length and next length of the window, as ints."""
        length = self._accumulation.options.accum_iters
        defaults = {"window_position": 0, "window_length": length, "accum_iters": length}
        return [self._count(name, default) for name, default in defaults.items()]

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

    def _check_is_between_steps(self):
        if self._accumulation.port.is_traced():
            raise RuntimeError(
                "`apply_partial_window` is for the time between train steps: it can't be called in "
                "a traced function (tf.function, jax.jit, torch.compile). Call it after the traced "
                "function has returned."
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

    def get_state(self):
        """Return the whole state as `{name: NumPy array}`, to save or to pass to `set_state`.

        The names and shapes are the same on every Keras, and `np.savez` takes the dictionary:

        - `state_format`: the version of this layout, 1.
        - `completed_updates`: integer scalar, the number of updates made.
        - `learning_rate`: scalar, if the learning rate is a number.
        - `<Rule>.<slot>.<i>`: a slot of trainable variable i, for example `Adam.momentum.0`.
        - `<Rule>.<scalar>`: what a rule keeps once for all variables, for example
          `Nadam.u_product`.
        - `moving_average.<i>`: the moving average of variable i, with `use_ema`.
        - `window_position`, `window_length`, `accum_iters`, with `accum_iters` > 1: the number of
          micro-batches in the open window, the number that closes the open window, and the number
          that will close the next window.
        - `accumulator.<i>`, with `accum_iters` > 1: the gradient sum of the open window.
        - `window_weight`, with `reduction="weighted"`: the weight of the gradient sum.
        - `missing_gradients`, if gradients have been missing in the open window: for each variable,
          the number of micro-batches in which its gradient was missing. The last element is
          `completed_updates`.

        Returns:
            A new dictionary of arrays.
        """
        self._check_numbers()
        state = {name: states.portable(array) for name, array in self._read_state().items()}
        return {"state_format": np.asarray(states.FORMAT), **state}

    def set_state(self, state):
        """Continue from a state that `get_state` returned, on this Keras or on another.

        An optimizer that has no variables yet keeps the state until its variables are created.

        Args:
            state: `{name: array}`. `learning_rate` is optional. The window is optional, too:
                without a window, a fresh window starts. The trainable variables of the model must
                have the same order.

        Raises:
            keras_accum.StateError: If the state doesn't fit this optimizer. The message names
                everything that doesn't fit, and the optimizer is unchanged.
        """
        state = states.as_arrays(state)
        if not self._is_built:
            self._keep_waiting(state)
            return
        self._check_numbers()
        self._write_state(self._fitted_to_variables(state))

    def _fitted_to_variables(self, state):
        """Return a complete state, with all names, of the built optimizer."""
        layout = self._layout()
        state = states.fitted(state, layout, self._described)
        if any(map(np.iscomplexobj, state.values())):
            kept = self._read_state()
            is_complex = {name: np.iscomplexobj(array) for name, array in kept.items()}
            states.check_complex(state, is_complex.get, self._described)
        return self._completed(state, layout)

    @property
    def _pending(self):
        return self._accumulation.pending

    def _keep_waiting(self, state):
        """Keep a state until the variables are created."""
        has_scalars = any(map(states.is_scalar_of_rule, state))
        state = self._fitted(state, states.by_index(state))
        self._write_shared(state)
        self._pending.drop()
        variables = states.count(state)
        if variables or has_scalars:
            names = self._order_of(state, variables)
            self._pending.hold(state, names, self._shared_variables(), self._add_waiting)

    def _order_of(self, state, variables):
        """Return the names of a state in the order of the host's files."""
        names = self._list_names(variables, stock=False)
        if states.MISSING in states.without_idle(state):
            names = _ending(lambda _: names, [states.MISSING], variables)
        return names

    def _take_waiting(self, variables, keys=()):
        """Take out the state that waits for these variables; None if no state waits."""
        if not self._pending:
            return None
        state = self._fitted(self._pending.in_order(self._read_state(), keys), variables)
        real = {i for i, v in enumerate(variables) if "complex" not in str(v.dtype)}

        def is_complex(name):
            return states.index_of(name) not in real

        states.check_complex(state, is_complex, self._described)
        self._pending.drop()
        return state

    def _fitted(self, state, variables):
        """Return a complete state for these variables. Only their shapes matter."""
        layout = self._expected_layout(state, variables)
        state = states.fitted(state, layout, self._described)
        return self._completed(state, layout)

    def _completed(self, state, layout):
        initial = {f"{self._rule_name}.{name}": n for name, n in self._initial_values.items()}
        return states.completed(state, layout, self._accumulation.options.accum_iters, initial)

    def _expected_layout(self, state, variables):
        """Return the names and shapes of a state for these variables."""
        return states.layout(self._state_names(len(variables)), variables)

    def _complete_waiting(self):
        """Complete the waiting state, after accum_iters was set that the file didn't hold."""
        if self._pending or self._pending.micro_batches is not None:
            accum_iters = self._accumulation.options.accum_iters
            self.set_state(self._pending.recounted(self.get_state(), accum_iters))
            self._pending.micro_batches = None

    def _check_numbers(self):
        """Raise a StateError if the order of the variables in the model isn't known."""

    def _check_is_built(self, method):
        if not self._is_built:
            raise ValueError(
                f"`{method}` before the optimizer has its variables: call "
                "`optimizer.build(model.trainable_variables)` first."
            )

    def _state_names(self, variables):
        """Return the names of the state for this number of variables."""
        return self._list_names(variables, stock=False)

    @property
    def _described(self):
        name, accum_iters = type(self).__name__, self._accumulation.options.accum_iters
        return f"this {name}(accum_iters={accum_iters}), whose rule is {self._rule_name}"

    # -- files -----------------------------------------------------------------------------------

    def set_weights(self, weights):
        """Continue from a list of arrays, in the order of the host's files.

        The list may also come from the stock optimizer, or from Keras 2.0 to 2.3.

        Args:
            weights: List of NumPy arrays.

        Raises:
            keras_accum.StateError: If the list is none of these. The optimizer is unchanged.
        """
        waits = self._pending.counts_micro_batches, self._pending.micro_batches
        try:
            self.set_state(self._named(weights))
        except states.StateError:
            self._pending.counts_micro_batches, self._pending.micro_batches = waits
            raise

    def save_own_variables(self, store):
        """Write the state to a Keras file, under the names of `get_state`."""
        for name, value in self.get_state().items():
            store[name] = value

    def load_own_variables(self, store):
        """Read the state from a Keras file of this package or of the stock optimizer."""
        state = states.as_arrays(store)
        if not state:
            name = getattr(self, "name", None) or self._name
            warn(
                f"The file holds no state of {name}, so {name} is unchanged. If the optimizer was "
                "in a LossScaleOptimizer when the file was saved, put it in a LossScaleOptimizer "
                "before loading.",
            )
            return
        if all(map(states.is_index, state)):
            self.set_weights([state[name] for name in sorted(state, key=int)])
        else:
            self.set_state(state)

    def _named(self, arrays):
        arrays = [states.as_array(array) for array in arrays]
        host = partial(self._list_names, stock=False)
        options = self._accumulation.options
        of_rule = self._rule_name, self._rule_scalars, self._rule_slots
        keras2 = partial(states.slot_major, *of_rule, accumulates=options.accumulates)
        tf_keras = partial(
            states.with_unapplied, *of_rule, accumulates=options.accumulates, weighs=options.weighs
        )
        state = None
        for names in (host, keras2, tf_keras):
            # Version 0.1.0 doesn't write the last name, nor does a host before a gradient is
            # missing.
            for last in ([states.MISSING], []):
                if state is None:
                    state = self._named_as(arrays, partial(_ending, names, last))
        is_of_stock = state is None or not self._accumulation.options.accumulates
        if state is None:
            state = self._named_as(arrays, partial(self._list_names, stock=True))
            state = state or self._from_keras_2(arrays)
        if state is None:
            raise self._no_state(arrays)
        states.check_numbers(state, self._described)
        if is_of_stock:
            self._pending.convert_count(state, self._accumulation.options.accum_iters)
        # A LossScaleOptimizer of tf_keras adds skipped micro-batches to `iterations`.
        state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        return state

    def _no_state(self, arrays):
        """Return an error that says that a list of arrays isn't a state."""
        first = f", the first of shape {np.shape(arrays[0])}," if len(arrays) else ""
        return states.StateError(
            f"A list of {len(arrays)} arrays{first} is not a state of {self._described}. The "
            "list belongs to another optimizer, is truncated, or was written by a newer "
            "keras_accum. Nothing was changed."
        )

    def _from_keras_2(self, arrays):
        state = states.from_keras_2(arrays, self._rule_name, self._rule_slots)
        has_count = not arrays or np.ndim(arrays[0]) == 0
        if state is not None and not has_count:
            self._warn_of_no_count()
        return state

    def _warn_of_no_count(self):
        if self.get_config().get("decay"):
            warn(_NO_COUNT.format(name=type(self).__name__))

    def _named_as(self, arrays, names):
        """Return these arrays as a state with the names `names(n)` for n variables, or None."""
        if self._is_built:
            layout = self._layout()
            return states.named(arrays, names(states.count(layout)), layout)
        one, two = len(names(1)), len(names(2))
        variables = (len(arrays) - one) // max(two - one, 1) + 1
        return states.named(arrays, names(variables))

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
        return _Loader(cls, arguments.check_accum_iters(accum_iters), stock)

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
                state["accum_iters"] = np.asarray(self._accumulation.options.accum_iters)
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
        more = set(self.get_config()) - set(type(self).__signature__.parameters)
        more.discard("is_legacy_optimizer")  # Keras 2 adds this key to a config
        if more:
            raise ValueError(
                f"{type(self).__name__} has arguments that no stock optimizer has: "
                f"{', '.join(sorted(more))}. Write a `to_stock` method for {type(self).__name__} "
                "that converts them."
            )
        if self.window_position:
            raise ValueError(
                f"`to_stock` at window_position={self.window_position}: a stock optimizer can't "
                "keep the gradients of an open window. Close the window first with "
                "`apply_partial_window()`."
            )


def _ending(names, last, variables):
    """Return the names of a state for this number of variables, with these names at the end."""
    return [name for name in names(variables) if name != states.MISSING] + last


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
