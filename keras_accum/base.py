"""What the optimizers of all hosts share: counters, the state, loading and moving over.

No host is imported here. How a state is read from variables and written to them is the host's.
"""

import collections
import contextlib
import math
import sys
import warnings
from functools import partial

import numpy as np

from keras_accum import arguments, pending, states

_NO_ACCUM_ITERS = (
    "This {name} was saved by a class that didn't save accum_iters: 1 is taken, an update on every "
    "micro-batch. Give it when loading, custom_objects={{'{name}': {name}.with_accum_iters(5)}}, "
    "or {remedy}. For a file of a stock optimizer it is with_accum_iters(5, stock=True)."
)

_NO_COUNT = (
    "This file doesn't hold how many updates RMSprop had made: with `decay` the learning "
    "rate of {name} begins again where it began. Where you know their number n, give it: "
    "`optimizer.set_state({{**optimizer.get_state(), 'completed_updates': n}})`."
)


class Optimizer:
    """Comes before the stock class. A host has, besides what stands here,

    * `_counters()`: the variables of the window by name, if they are there, or if a state waits;
    * `_shared_variables()`: by their names in a state, those that are there before `build`;
    * `_add_waiting(name, array)`: a variable that holds this array;
    * `_get_scalar(variable)`, `_set_count(variable, value)`;
    * `_replica()`: the number of the replica that a train step is run or traced for;
    * `_add_norm(name)`: a variable that is no part of the state;
    * `_build_window()`: creates counters and accumulators, where slots are there and they aren't;
    * `_can_reduce_late`: whether it has all_reduce="per_window";
    * `_is_traced()`: whether what is computed becomes a part of a traced program;
    * `_is_built`: whether slots and accumulators are there;
    * `_rule_slots`, `_rule_scalars`: what the rule keeps for each variable and once for all, in the
      order of the host's files;
    * `_list_names(n, stock)`: the names, in the order of the host's files, of the state for n
      variables, or of the stock optimizer's;
    * `_close_window()`: makes the update of the open window;
    * `_layout()`: the names of the built state and their shapes;
    * `_rate_state()`: the learning rate as a part of a state, if it's a number;
    * `_read_state()`: the state, from where it waits or from where it belongs;
    * `_write_state(state)`: all variables at once;
    * `_write_shared(state)`: what of a state has a variable already.
    """

    # How to give accum_iters to a model that was loaded from a file without it.
    _remedy = "before the first step of the loaded model, model.optimizer.accum_iters = 5"

    # Whether a train step has been made or traced with what was there at the time.
    _has_stepped = False

    # What slots and scalars begin with, by their names in a state, where that isn't zero.
    _initial_values = {}

    # The function that has made this class and its arguments, if pickle can't find it by name.
    _made_by = None

    def _how_made(self):
        """A function and its arguments, which pickle can find, that give this class."""
        return vars(type(self)).get("_made_by") or (_itself, (type(self),))

    @property
    def _accumulates(self):
        return self._accum_iters > 1

    @property
    def _rule_name(self):
        """What the mathematics is called in a state. AdamW is Adam with another weight decay."""
        if getattr(self, "amsgrad", False):
            return "AMSGrad"
        name = self._stock_class.__name__
        return {"AdamW": "Adam"}.get(name, name)

    # What the host has decided for the train step that is being run or traced: whether it is the
    # one that updates. None where the window's counters decide.
    _decided = None

    def _count_trace(self):
        """A micro-batch is being run or traced."""
        self._trace_counts[self._replica()] += 1

    def _micro_batches_traced(self):
        """How many micro-batches have been run or traced for this replica."""
        return self._trace_counts[self._replica()]

    @property
    def _trace_counts(self):
        # Past attribute tracking.
        return self.__dict__.setdefault("_traces_by_replica", collections.Counter())

    @property
    def _branches(self):
        """Whether there is an update to be left out, and a conditional is to do that."""
        return (
            self.gate == "conditional"
            and self._decided is None
            and (self._accumulates or self.skip_nonfinite)
        )

    @property
    def _reduces_late(self):
        """Whether each replica has a gradient sum of its own until the window closes."""
        return self._accumulates and self.all_reduce == "per_window"

    @contextlib.contextmanager
    def _deciding(self, update):
        """Train steps in here update if `update`, and only accumulate if not."""
        self._decided = update
        try:
            yield
        finally:
            self._decided = None

    @property
    def window_position(self):
        """The number of micro-batches in the open window, 0 when none is open. An int."""
        return self._count("window_position", 0)

    @property
    def accum_iters(self):
        """The number of micro-batches that make one update. Set it: the next window has it.

        From 1 to more only before the first step, when there are no accumulators yet.
        """
        return self._count("accum_iters", self._accum_iters)

    @accum_iters.setter
    def accum_iters(self, accum_iters):
        accum_iters = arguments.check_accum_iters(accum_iters)
        counter = self._counters().get("accum_iters")
        if counter is not None:
            self._set_count(counter, accum_iters)
        elif not self._has_stepped:
            self._accum_iters = accum_iters
            self._build_window()
            self._renew()
        elif accum_iters != 1:
            name = type(self).__name__
            raise ValueError(arguments.NO_ACCUMULATORS.format(accum_iters, name))

    def _count_window(self):
        """Position, length and next length of the window, as ints."""
        length = self._accum_iters
        defaults = {"window_position": 0, "window_length": length, "accum_iters": length}
        return [self._count(name, default) for name, default in defaults.items()]

    def _count(self, name, default):
        """A counter's value, or a default where it isn't there yet."""
        counter = self._counters().get(name)
        return int(default if counter is None else self._get_scalar(counter))

    def apply_partial_window(self):
        """Close the open window now: one update from the micro-batches that it holds.

        With `reduction="mean"` their sum is divided by how many they are, with "weighted" by what
        they weigh. Does nothing when no window is open. To be called between train steps.

        Raises:
            RuntimeError: if it's called in a function that is traced.
            ValueError: on Keras 2.0 to 2.3, if the optimizer is in several models, and a window is
                open that isn't of the one whose train step was made last.
        """
        self._check_is_between_steps()
        if self.window_position == 0:
            return
        self._check_is_built("apply_partial_window")
        self._close_window()

    def _check_is_between_steps(self):
        if self._is_traced():
            raise RuntimeError(
                "`apply_partial_window` is for the time between train steps: it can't be called in "
                "a function that is traced (tf.function, jax.jit, torch.compile). Call it after "
                "that function."
            )

    # -- trainings -----------------------------------------------------------------------------

    # Completed updates and position when the training began or, where that isn't known, when the
    # last one ended.
    _at_start = (0, 0)
    # Whether Keras itself tells the optimizer that a training ends.
    _is_told_of_the_end = False

    def _start_training(self):
        self._at_start = self.completed_updates, self.window_position

    def _end_training(self):
        """Warn of a training that has only accumulated."""
        (updates, position), now = self._at_start, (self.completed_updates, self.window_position)
        self._at_start = now
        has_failed = sys.exc_info()[0] is not None  # the error says why the training ended
        if now[0] == updates and now[1] > position and not has_failed:
            warnings.warn(
                f"This training ends with no update: {now[1]} of {self._count_window()[1]} "
                "micro-batches are in the open window, and the weights are what they were. "
                "Another training goes on with the window. To close it now, "
                "`optimizer.apply_partial_window()` or the callback ApplyPartialWindow; to have it "
                "close earlier, a smaller `accum_iters`.",
                stacklevel=3,
            )

    # -- weights of micro-batches ------------------------------------------------------------------

    @property
    def _weighs(self):
        return self._accumulates and self.reduction == "weighted"

    def weigh(self, weight):
        """Say what the next micro-batch weighs in its window, with `reduction="weighted"`.

        A train step calls it before `apply_gradients` (or `apply`, or `stateless_apply`), each
        time; in `fit` the callback `MicroBatchWeights` does. A test step doesn't: the weight that
        it says would be taken for the next micro-batch's.

        Args:
            weight: Scalar >= 0, a number or a tensor: what the loss of the micro-batch, which is a
                mean, was divided by. In a `tf.distribute` replica, that of the replica's share.
                Where the value of a tensor is negative, infinite or NaN, the gradients of the
                micro-batch become NaN: `skip_nonfinite` drops it, and else the update shows it.

        Raises:
            ValueError: if `reduction` is another, or if a number is negative, infinite or NaN.
        """
        if self.reduction != "weighted":
            raise ValueError(
                "`weigh` needs an optimizer that was constructed with reduction='weighted'. "
                f"Received: reduction={self.reduction!r}"
            )
        arguments.check_weight(weight)
        if self._accumulates:
            self._weights_said[self._replica()] = self._without_gradient(weight)

    @staticmethod
    def _without_gradient(weight):
        """What can be used outside of the function whose gradient is taken."""
        return weight

    @property
    def _weights_said(self):
        # By replica: `tf.distribute` runs a step for each, in turns. Past attribute tracking.
        return self.__dict__.setdefault("_weights_by_replica", {})

    def _take_weight(self):
        weight = self._weights_said.pop(self._replica(), None)
        if weight is None and self._weighs:
            raise ValueError(
                "reduction='weighted' needs the weight of each micro-batch: "
                "`fit(..., callbacks=[MicroBatchWeights()])`, or in a train step of your own "
                "`optimizer.weigh(weight)` before `apply_gradients`."
            )
        return weight

    def _forget_weights(self):
        """After a training, in which a validation may have said one that no micro-batch took."""
        self._weights_said.clear()

    # -- what AccumulationMonitor sees -----------------------------------------------------------

    # Norms that train steps write, in variables that are no part of the state. Before the first,
    # they are negative: a NaN is what those who look for one would find.
    _watched = ()

    def _watch(self, names):
        """Have the train steps that are made or traced from now on write these norms."""
        for name in names:
            if name not in self._norms:
                self._norms[name] = self._add_norm(name)
        self._watched = tuple(names)

    @property
    def _norms(self):
        return self.__dict__.setdefault("_norm_variables", {})  # past attribute tracking

    @property
    def _watched_norms(self):
        return [self._norms[name] for name in self._watched]

    def _read_norm(self, name):
        norm = float(self._get_scalar(self._norms[name]))
        return math.nan if norm < 0 else norm

    def get_state(self):
        """The whole state as {name: NumPy array}, to be saved or handed to `set_state`.

        The names and shapes are the same on every Keras, and `np.savez` takes the dictionary:

            state_format: the version of this layout, 1.
            completed_updates: integer scalar.
            learning_rate: scalar, where it's a number.
            <Rule>.<slot>.<i>: a slot of trainable variable i, as in Adam.momentum.0.
            moving_average.<i>: on Keras 3 with use_ema.
            window_position, window_length, accum_iters, accumulator.<i>: with accum_iters > 1,
                the micro-batches in the open window, how many close it, how many will close the
                next, and the open window's gradient sum.
            window_weight: with reduction="weighted", the weight of that sum.
            missing_gradients: where gradients have been missing in the open window, for each
                variable in how many of its micro-batches, and last `completed_updates`.
        """
        self._check_numbers()
        state = {name: states.portable(array) for name, array in self._read_state().items()}
        return {"state_format": np.asarray(states.FORMAT), **state}

    def set_state(self, state):
        """Go on from a state that `get_state` returned, here or on another Keras.

        An optimizer that hasn't got its variables yet keeps the state until it gets them.

        Args:
            state: {name: array}. `learning_rate` may be left out, as may the window: then a fresh
                one is begun. The model's trainable variables must come in the same order.

        Raises:
            keras_accum.StateError: if the state doesn't fit this optimizer, naming every misfit.
                The optimizer is then what it was.
        """
        if not self._is_built:
            self._keep_waiting(state)
            return
        self._check_numbers()
        layout = self._layout()
        state = states.fitted(state, layout, self._described)
        self._write_state(self._completed(state, layout))

    @property
    def _pending(self):
        return self.__dict__.setdefault("_pending_state", pending.PendingState())  # as above

    def _keep_waiting(self, state):
        """Keep a state until the variables come."""
        has_scalars = any(map(states.is_scalar_of_rule, state))
        state = self._fitted(state, states.by_index(state))
        self._write_shared(state)
        self._pending.drop()
        variables = states.count(state)
        if variables or has_scalars:
            names = self._order_of(state, variables)
            self._pending.hold(state, names, self._shared_variables(), self._add_waiting)

    def _order_of(self, state, variables):
        """The names of a state in the order of the host's files."""
        names = self._list_names(variables, stock=False)
        if states.MISSING in states.without_idle(state):
            names = _ending(lambda _: names, [states.MISSING], variables)
        return names

    def _take_waiting(self, variables, keys=()):
        """The state that has waited for these variables, None if none has. It waits no longer."""
        if not self._pending:
            return None
        state = self._fitted(self._pending.in_order(self._read_state(), keys), variables)
        self._pending.drop()
        return state

    def _fitted(self, state, variables):
        """A complete state for these variables, of which only the shapes matter."""
        layout = self._expected_layout(state, variables)
        state = states.fitted(state, layout, self._described)
        return self._completed(state, layout)

    def _completed(self, state, layout):
        initial = {f"{self._rule_name}.{name}": n for name, n in self._initial_values.items()}
        return states.completed(state, layout, self._accum_iters, initial)

    def _expected_layout(self, state, variables):
        """The names and shapes that a state for these variables has."""
        return states.layout(self._state_names(len(variables)), variables)

    def _renew(self):
        """Complete what waits, after accum_iters was given that a file didn't have."""
        if self._pending or self._pending.micro_batches is not None:
            self.set_state(self._pending.recounted(self.get_state(), self._accum_iters))
            self._pending.micro_batches = None

    def _check_numbers(self):
        """Raise a StateError if it isn't known which variable of the model is which."""

    def _check_is_built(self, method):
        if not self._is_built:
            raise ValueError(
                f"`{method}` before the optimizer has its variables: call "
                "`optimizer.build(model.trainable_variables)` first."
            )

    def _state_names(self, variables):
        """The names of the state for so many variables."""
        return self._list_names(variables, stock=False)

    @property
    def _described(self):
        name = type(self).__name__
        return f"this {name}(accum_iters={self._accum_iters}), whose rule is {self._rule_name}"

    # -- files -----------------------------------------------------------------------------------

    def set_weights(self, weights):
        """Go on from a list of arrays, in the order of the host's files.

        It may also be a list of the stock optimizer, or one that Keras 2.0 to 2.3 wrote.

        Raises:
            keras_accum.StateError: if it is none of these. The optimizer is then what it was.
        """
        self.set_state(self._named(weights))

    def save_own_variables(self, store):
        """Write the state to a file of Keras, by the names of `get_state`."""
        for name, value in self.get_state().items():
            store[name] = value

    def load_own_variables(self, store):
        """Read the state from a file of Keras, this package's or the stock optimizer's."""
        state = {name: np.asarray(store[name]) for name in store.keys()}
        if not state:
            name = getattr(self, "name", None) or self._name
            warnings.warn(
                f"The file holds no state of {name}, which is left as it was. A file of a model "
                "whose optimizer was in a LossScaleOptimizer has it for a model where it's in one.",
                stacklevel=2,
            )
            return
        if all(name.isdigit() for name in state):
            state = self._named([state[name] for name in sorted(state, key=int)])
        self.set_state(state)

    def _named(self, arrays):
        arrays = [np.asarray(array) for array in arrays]
        own = partial(self._list_names, stock=False)
        of_rule = self._rule_name, self._rule_scalars, self._rule_slots
        keras2 = partial(states.slot_major, *of_rule, accumulates=self._accumulates)
        tf_keras = partial(
            states.with_unapplied, *of_rule, accumulates=self._accumulates, weighs=self._weighs
        )
        state = None
        for names in (own, keras2, tf_keras):
            # Without the last, a file of version 0.1.0, or no gradient has been missing.
            for last in ([states.MISSING], []):
                if state is None:
                    state = self._named_as(arrays, partial(_ending, names, last))
        is_of_stock = state is None or not self._accumulates
        if state is None:
            state = self._named_as(arrays, partial(self._list_names, stock=True))
            state = state or self._from_keras_2(arrays)
        if state is None:
            raise states.StateError(
                f"A list of {len(arrays)} arrays, {arrays[0].shape if arrays else 'none'} the "
                f"first, is not a state of {self._described}: it is another optimizer's, "
                "truncated, or of a newer keras_accum. Nothing was changed."
            )
        if is_of_stock:
            self._pending.convert_count(state, self._accum_iters)
        # What a LossScaleOptimizer of tf_keras added to `iterations` is no update.
        state["completed_updates"] = state["completed_updates"] - state.pop("unapplied", 0)
        return state

    def _from_keras_2(self, arrays):
        state = states.from_keras_2(arrays, self._rule_name, self._rule_slots)
        has_count = not arrays or np.ndim(arrays[0]) == 0
        if state is not None and not has_count and self.get_config().get("decay"):
            warnings.warn(_NO_COUNT.format(name=type(self).__name__), stacklevel=2)
        return state

    def _named_as(self, arrays, names):
        """The state that these arrays are if `names(n)` are their names, for n variables."""
        if self._is_built:
            variables = states.count(self._layout())
        else:
            one, two = len(names(1)), len(names(2))
            variables = (len(arrays) - one) // max(two - one, 1) + 1
        return states.named(arrays, names(variables))

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer that `get_config` described, also one of Keras 2.0 to 2.3."""
        config = arguments.renamed_config(config)
        if "clipnorm" in config and "decay" in config and "name" not in config:
            # What Keras 2.0 to 2.3 calls so is the norm of all gradients together.
            config["global_clipnorm"] = config.pop("clipnorm")
        if config.get("all_reduce") == "per_window" and not cls._can_reduce_late:
            warnings.warn(f"{arguments.NO_LATE_REDUCTION} It is left out here.", stacklevel=2)
            del config["all_reduce"]
        counts_micro_batches = "lr" in config and "accum_iters" not in config
        with arguments.unchecked():
            optimizer = cls._from_stock_config(config, custom_objects)
        if counts_micro_batches:
            remedy = cls._remedy.format(name=cls.__name__)
            warnings.warn(_NO_ACCUM_ITERS.format(name=cls.__name__, remedy=remedy), stacklevel=2)
            optimizer._pending.counts_micro_batches = True
        return optimizer

    @classmethod
    def _like(cls, config, given=()):
        """An optimizer with this config of another one, but for the arguments that are given."""
        arguments.check_ranges(cls, dict(given))
        with arguments.unchecked():
            return cls(**{**config, **dict(given)})

    @classmethod
    def _from_stock_config(cls, config, custom_objects):
        return super().from_config(config, custom_objects)

    @classmethod
    def with_accum_iters(cls, accum_iters, stock=False):
        """This class for `custom_objects`, where a file doesn't hold accum_iters.

        Files of the AdamAccumulate class that was copied from the web don't, and they count
        micro-batches, which are converted. Files of stock optimizers of Keras 2 count updates.

        Args:
            accum_iters: Integer >= 1.
            stock: Boolean, default False. Whether the file is a stock optimizer's. Keras knows
                those by names in lower case.

        Example:

            load_model(path, custom_objects={"AdamAccumulate": AdamAccumulate.with_accum_iters(5)})
            load_model(path, custom_objects={"adam": AdamAccumulate.with_accum_iters(5, True)})
        """
        return _Loader(cls, arguments.check_accum_iters(accum_iters), stock)

    # -- stock optimizers --------------------------------------------------------------------------

    @classmethod
    def _check_source(cls, optimizer, kinds):
        if hasattr(optimizer, "inner_optimizer"):
            raise TypeError(
                "`optimizer` is a LossScaleOptimizer: give its `inner_optimizer`, and wrap the "
                f"result. Received: optimizer={optimizer}"
            )
        if type(optimizer) not in kinds and not (
            isinstance(optimizer, Optimizer) and isinstance(optimizer, cls._stock_class)
        ):
            names = sorted({f"{kind.__module__}.{kind.__name__}" for kind in kinds})
            raise TypeError(
                f"`optimizer` must be one that {cls.__name__} stands for, {' or '.join(names)}, or "
                f"of this package with the same rule. Received: optimizer={optimizer}"
            )

    @classmethod
    def _check_fixed(cls, config):
        """Take what the class decides itself out of a config, if it is decided in the same way."""
        for name, value in cls.fixed.items():
            received = config.pop(name, value)
            if received != value:
                raise ValueError(
                    f"`optimizer` must have {name}={value} to become {cls.__name__}. "
                    f"Received: {name}={received}"
                )

    def _continue_from(self, state, source):
        """Go on from the state of the optimizer that this one was made from."""
        # A constructor argument, and given.
        state = {name: value for name, value in state.items() if name != "learning_rate"}
        if isinstance(source, Optimizer):
            state = source._pending.recounted(state, self._accum_iters)
        if self._accumulates:
            if "accum_iters" in state:
                state["accum_iters"] = np.asarray(self._accum_iters)
        elif state.get("window_position", 0):
            raise ValueError(
                f"`optimizer` is {state['window_position']} micro-batches into a window, and at "
                "accum_iters=1 there are no accumulators: `apply_partial_window()` first, or give "
                "accum_iters >= 2."
            )
        else:
            state = states.without_window(state)
        self.set_state(state)

    def _check_can_be_stock(self):
        """Raise what keeps the stock optimizer from going on as this one would."""
        own = set(self.get_config()) - set(type(self).__signature__.parameters)
        own.discard("is_legacy_optimizer")  # what Keras 2 adds to a config
        if own:
            raise ValueError(
                f"{type(self).__name__} has arguments that no stock optimizer has: "
                f"{', '.join(sorted(own))}. Write a `to_stock` for that class, which says what "
                "becomes of them."
            )
        if self.window_position:
            raise ValueError(
                f"`to_stock` at window_position={self.window_position}: a stock optimizer can't "
                "keep the gradients of an open window. Close it first, `apply_partial_window()`."
            )


def _ending(names, last, variables):
    """The names of a state for so many variables, with these last ones."""
    return [name for name in names(variables) if name != states.MISSING] + last


class _OfInner:
    """An attribute of a LossScaleOptimizer that is its inner optimizer's."""

    def __init__(self, name):
        self._name = name

    def __get__(self, wrapper, owner=None):
        return self if wrapper is None else getattr(wrapper.inner_optimizer, self._name)

    def __set__(self, wrapper, value):
        setattr(wrapper.inner_optimizer, self._name, value)


def hand_on(wrapper):
    """Have a host's LossScaleOptimizer hand on to the inner optimizer what only ours have.

    `compile` wraps an optimizer without being asked, and what was set there was set on nothing.
    """
    names = "accum_iters", "completed_updates", "window_position", "apply_partial_window", "weigh"
    for name in (*names, "lr"):
        if not hasattr(wrapper, name):
            setattr(wrapper, name, _OfInner(name))


def check_stock_class(stock, optimizers, wrappers):
    """Raise a TypeError unless it is a class that `accumulating` can take.

    `optimizers` are the classes that the host's optimizers have above them, `wrappers` those whose
    optimizers are around others.
    """
    if isinstance(stock, Optimizer) or isinstance(stock, type) and issubclass(stock, Optimizer):
        raise TypeError(
            "`optimizer_class` must be a class without accumulation, and this one accumulates "
            f"already: use it as it is. Received: optimizer_class={stock}"
        )
    if isinstance(stock, wrappers) or isinstance(stock, type) and issubclass(stock, wrappers):
        name = stock.__name__ if isinstance(stock, type) else type(stock).__name__
        raise TypeError(
            f"`optimizer_class` can't be {name}, which is around other optimizers: give the class "
            f"of an inner one, and put {name} around the result. Received: optimizer_class={stock}"
        )
    if isinstance(stock, optimizers):
        name = type(stock).__name__
        raise TypeError(
            f"`optimizer_class` must be a class, not an optimizer: accumulating({name})(...), or "
            f"accumulating({name}).from_optimizer(optimizer), which takes its arguments and its "
            f"state over. Received: optimizer_class={stock}"
        )
    if not (isinstance(stock, type) and issubclass(stock, optimizers)):
        raise TypeError(
            "`optimizer_class` must be a subclass of "
            f"{' or '.join(f'{kind.__module__}.{kind.__name__}' for kind in optimizers)}. "
            f"Received: optimizer_class={stock!r}"
        )


def check_members(family, stock, keras_name):
    """Raise a TypeError if a class that isn't Keras's has members in the place of ours."""
    ours = {name for cls in family.__mro__[:-1] for name in vars(cls)}
    theirs, of_keras = set(), set()
    for cls in stock.__mro__[:-1]:
        is_of_keras = cls.__module__.split(".")[0] in (keras_name, "keras", "tensorflow")
        (of_keras if is_of_keras else theirs).update(vars(cls))
    clashes = sorted(name for name in ours & theirs - of_keras if not name.startswith("__"))
    if clashes:
        raise TypeError(
            f"{stock.__name__} has members that every accumulating optimizer has, for another "
            f"purpose: {', '.join(clashes)}. Rename them in that class."
        )


def check_attributes(optimizer, new):
    """Raise a TypeError if the stock class has set attributes that mean another thing to ours."""
    classes = [c for c in type(optimizer).__mro__ if c.__module__.startswith("keras_accum.")]
    check_taken(type(optimizer)._stock_class, new, [name for cls in classes for name in vars(cls)])


def check_taken(stock, theirs, ours):
    """Raise a TypeError if attributes of a stock optimizer have the names of ours."""
    taken = sorted(set(theirs) & set(ours))
    if taken:
        raise TypeError(
            f"{stock.__name__} sets attributes that every accumulating "
            f"optimizer has, for another purpose: {', '.join(taken)}. Rename them in that class."
        )


def plain(value):
    """A config without the containers in which Keras tracks what was given to an optimizer."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value)) if isinstance(value, tuple) else list(map(plain, value))
    return value


def _itself(cls):
    return cls


def restored(make, arguments, config, state):
    """What pickle calls: `make(*arguments)` is the class."""
    optimizer = make(*arguments).from_config(config)
    optimizer.set_state(state)
    return optimizer


class _Loader:
    """What `with_accum_iters` returns: as much of a class as loading needs."""

    def __init__(self, cls, accum_iters, stock):
        self.cls = cls
        self.accum_iters = accum_iters
        self.stock = stock
        self.__name__ = cls.__name__

    def from_config(self, config, custom_objects=None):
        if config.get("accum_iters", self.accum_iters) != self.accum_iters:
            raise ValueError(
                f"with_accum_iters({self.accum_iters}) for a file that holds "
                f"accum_iters={config['accum_iters']}: load it with {self.__name__} itself, and "
                "set `model.optimizer.accum_iters` then."
            )
        counts_micro_batches = "accum_iters" not in config and not self.stock
        config = {**config, "accum_iters": self.accum_iters}
        optimizer = self.cls.from_config(config, custom_objects)
        optimizer._pending.counts_micro_batches = counts_micro_batches
        return optimizer
