"""The optimizers for standalone Keras 2.2 and 2.3 on TensorFlow 1.

Each class is the stock optimizer of its name with another `get_updates`: it adds the gradients to
the accumulators and runs the rule with gated scalars (see `_rules`), at `accum_iters=1` as well.

TensorFlow 1 orders nothing within a train step, and the stock optimizers leave it at that: a weight
may be overwritten before back-propagation has read it, a counter before the bias correction has.
Here all that a step computes is computed before its first write, and the counters come last.
"""

import math
import numbers
from collections import namedtuple

import numpy as np

from keras_accum import arguments, base, docs, host, names, rules, states, window
from keras_accum.callbacks import partial_window
from keras_accum.states import StateError  # noqa: F401, public

keras = host.import_standalone_keras_2()

import tensorflow as tf  # noqa: E402, the line above says what is wrong where it can't be

from keras_accum import kernels  # noqa: E402

_stock = keras.optimizers
K = keras.backend
ops = tf.compat.v2  # whose `where` isn't deprecated


class AccumulatingOptimizer(base.Optimizer):
    """Everything Keras, for all classes. A class names it before its stock optimizer and has

    * `_rule()`: the rule that belongs to the stock optimizer as it was constructed;
    * `fixed`: the stock arguments that the class decides itself;
    * `rule_arguments`: what the rule takes and the stock optimizer doesn't, with defaults.
    """

    fixed = {}
    rule_arguments = {}
    _can_reduce_late = False
    # Arguments that Keras 2.3 takes and doesn't have in its signatures.
    unsigned = ("epsilon",)

    _remedy = "compile the loaded model with {name}.from_optimizer(model.optimizer, accum_iters=5)"

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            names = ("learning_rate", *cls.unsigned, "clipnorm", "clipvalue", "global_clipnorm")
            more = {**cls.rule_arguments, **dict.fromkeys(names)}
            cls.__signature__ = arguments.signature(cls._stock_class, cls.fixed, more)
            cls.__doc__ = cls.__doc__ or docs.docstring(cls.__name__, "keras2", "import keras")

    def __init__(self, *args, **kwargs):
        given = arguments.bind(type(self), args, kwargs, unknown=TypeError)
        own = arguments.pop_own(type(self), given)
        if own["reduction"] == "weighted":
            raise ValueError(
                "reduction='weighted' isn't there on Keras 2.0 to 2.3, whose train step has no "
                "place for a weight: use 'mean', or a loss that sums and 'sum'."
            )
        given["decay"] = arguments.check_decay(given.pop("decay", None))
        if "learning_rate" in given:
            given["lr"] = arguments.check_number("learning_rate", given.pop("learning_rate"))
        given.update(_clips(given))
        added = {name: given.pop(name, value) for name, value in self.rule_arguments.items()}

        super().__init__(**given, **self.fixed)
        for name, value in added.items():
            setattr(self, name, value)
        self.reduction = own["reduction"]
        self.skip_nonfinite = own["skip_nonfinite"]
        self.gate = own["gate"]
        self.all_reduce = own["all_reduce"]
        self._accum_iters = own["accum_iters"]
        self._next_length = None  # one for all models, as are `iterations` and the learning rate
        self._positions = {}  # in the windows of models, by the names of their variables
        self._forget()

    def _forget(self):
        """Be without variables, as before the first model and between two."""
        self._variables = []
        self._slots = {}
        self._window = None
        self._accumulators = []
        self._closing = None

    # -- state ---------------------------------------------------------------------------------

    def _build(self, params):
        """Create the state for these variables, once more for each model that is compiled."""
        state = self._released([_Shape(K.int_shape(variable)) for variable in params])
        self._forget()
        self._variables, rule = list(params), self._rule()
        for slot in rule.slots:
            for i, variable in enumerate(self._variables):
                name = states.slot_name(self._rule_name, slot, i)
                self._slots[slot, i] = _zeros(variable, K.dtype(variable), name)
        self._build_window()
        if state is not None:
            self._write_state(state)
        self.weights = list(self._state_variables().values())

    def _build_window(self):
        if not (self._accumulates and self._variables):
            return
        if self._next_length is None:
            self._next_length = _counter("accum_iters", self._accum_iters)
        self._state_format = _counter("state_format", states.FORMAT)
        self._window = (
            _counter("window_position", 0),
            _counter("window_length", self._accum_iters),
            self._next_length,
        )
        self._positions[self._model_key] = self._window[0]
        self._accumulators = [
            _zeros(variable, _sum_type(variable), f"accumulator.{i}")
            for i, variable in enumerate(self._variables)
        ]

    @property
    def _model_key(self):
        return tuple(variable.name for variable in self._variables)

    @property
    def completed_updates(self):
        """The number of updates made: what `decay` and bias correction count. An int."""
        return self._count("completed_updates", K.get_value(self.iterations))

    def _counters(self):
        if self._pending:
            return self._pending.counters
        return {} if self._window is None else dict(zip(states.WINDOW, self._window))

    def _get_scalar(self, variable):
        return K.get_value(variable)

    def _set_count(self, counter, value):
        K.set_value(counter, value)

    _rule_scalars = ()

    @property
    def _rule_slots(self):
        return self._rule().slots

    @property
    def _is_built(self):
        return bool(self._variables)

    @property
    def _has_stepped(self):
        return self._is_built  # the train step is a part of the graph

    def _list_names(self, variables, stock):
        return states.slot_major(
            self._rule_name, (), self._rule_slots, variables, self._accumulates and not stock
        )

    def _state_names(self, variables):
        return self._list_names(variables, stock=False) + list(self._rate_state())

    def _state_variables(self):
        """All weights by their names, in the order of `_list_names`."""
        if self._pending:
            return dict(self._pending.variables)
        found = {"completed_updates": self.iterations}
        for (slot, i), variable in self._slots.items():
            found[states.slot_name(self._rule_name, slot, i)] = variable
        if self._window is not None:
            found["state_format"] = self._state_format
            found.update(self._counters())
            found.update({f"accumulator.{i}": v for i, v in enumerate(self._accumulators)})
        return found

    def _layout(self):
        shapes = [_Shape(K.int_shape(variable)) for variable in self._variables]
        return states.layout(self._state_names(len(shapes)), shapes)

    def _read_state(self):
        found = self._state_variables()
        found.pop("state_format", None)
        values = K.batch_get_value(list(found.values()))
        return {**{n: np.asarray(v) for n, v in zip(found, values)}, **self._rate_state()}

    def _rate_state(self):
        return {"learning_rate": np.asarray(K.get_value(self.learning_rate))}

    def _write_state(self, state):
        variables = {**self._state_variables(), "learning_rate": self.learning_rate}
        K.batch_set_value([(variables[name], state[name]) for name in state])

    def _shared_variables(self):
        return {"completed_updates": self.iterations}

    def _add_waiting(self, name, array):
        with _no_scope():
            return K.variable(array, array.dtype, _file_name(name))

    def _write_shared(self, state):
        variables = {**self._shared_variables(), "learning_rate": self.learning_rate}
        K.batch_set_value([(v, state[name]) for name, v in variables.items() if name in state])

    def _hold(self, state):
        super()._hold(state)
        self.weights = list(self._state_variables().values())

    def get_weights(self):
        """The state as a list of arrays, in the order of files."""
        return K.batch_get_value(self.weights)

    @property
    def learning_rate(self):
        """The variable of the learning rate. Set it to a number: the next update has it."""
        return self._rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        if isinstance(learning_rate, numbers.Real):
            K.set_value(self._rate, arguments.check_number("learning_rate", learning_rate))
        else:
            self._rate = learning_rate  # the stock constructor

    lr = learning_rate

    @classmethod
    def _from_stock_config(cls, config, custom_objects):
        return cls(**config)

    def get_config(self):
        config = super().get_config()
        for name in self.fixed:
            del config[name]
        for name in self.rule_arguments:
            config[name] = getattr(self, name)
        if "clipnorm" in config:  # which is what all other hosts call it
            config["global_clipnorm"] = config.pop("clipnorm")
        config.update(arguments.own_config(self))
        return config

    @classmethod
    def from_optimizer(cls, optimizer, **arguments):
        """This class in the place of a stock optimizer, with its arguments and its state.

        Args:
            optimizer: The stock optimizer of the same rule, or one of this package. It is left as
                it is. Compile the model with the result.
            arguments: Constructor arguments that are to be other than the optimizer's, as
                `accum_iters`.

        Raises:
            TypeError, ValueError: if it is an optimizer with another rule.

        Example:

        >>> from keras_accum.keras2 import AdamAccumulate
        >>> optimizer = AdamAccumulate.from_optimizer(AdamAccumulate(0.01), accum_iters=5)
        >>> optimizer.accum_iters
        5
        """
        cls._check_source(optimizer, {cls._stock_class})
        config = optimizer.get_config()
        if "lr" in config:  # Keras 2.2
            config["learning_rate"] = config.pop("lr")
        cls._check_fixed(config)
        new = cls(**{**config, **arguments})
        if isinstance(optimizer, AccumulatingOptimizer):
            state = optimizer.get_state()
        elif optimizer.weights:
            state = states.from_keras_2(
                K.batch_get_value(optimizer.weights), new._rule_name, new._rule_slots
            )
            state["completed_updates"] = np.asarray(K.get_value(optimizer.iterations))
        else:
            return new
        new._continue_from(state, optimizer)
        return new

    def to_stock(self):
        """The stock optimizer with the same arguments and state, for those without this package.

        Compile the model with it, to train on or to save it. This optimizer is left as it is.

        Raises:
            ValueError: if a window is open, and if the rule is none of a stock optimizer.
        """
        self._check_can_be_stock()
        config = {**self.get_config(), **self.fixed}
        for name in arguments.own_config(self):
            del config[name]
        if "global_clipnorm" in config:
            config["clipnorm"] = config.pop("global_clipnorm")
        stock = self._stock_class(**config)
        state = self.get_state()
        K.set_value(stock.iterations, state["completed_updates"])
        if states.count(state):
            _start_from(stock, states.to_keras_2(state, self._rule_name))
        return stock

    def __reduce__(self):
        return base.restored, (*self._how_made(), self.get_config(), self.get_state())

    def __repr__(self):
        return arguments.representation(self, "standalone Keras 2")

    # -- one micro-batch -----------------------------------------------------------------------

    def get_updates(self, loss, params):
        """The operation that makes one micro-batch's step, in a list."""
        grads = self._unclipped_gradients(loss, params)
        self._build(params)
        counted = tf.ones([], tf.int64)
        if self.skip_nonfinite:
            counted = tf.cast(kernels.all_finite(grads), tf.int64)
            grads = [kernels.gate(g, tf.cast(counted, g.dtype)) for g in grads]
        step = window.advance(ops, *self._window_state(), counted=counted)
        if self._branches:
            self.updates = [self._branch(step, grads, after=[loss])]
        else:
            self.updates = [self._write(step, self._totals(grads), after=[loss])]
        return self.updates

    def apply_partial_window(self):
        """Close the open window now: one update from the micro-batches that it holds.

        With `reduction="mean"` their sum is divided by how many they are. Does nothing when no
        window is open. To be called between train steps.

        Raises:
            ValueError: if the optimizer is in several models, and a window is open that isn't of
                the one whose train step was made last.
        """
        self._check_other_models()
        if self.window_position == 0:
            return
        self._check_is_built("apply_partial_window")
        if self._closing is None:
            position, length, _ = self._window_state()
            totals = [tf.convert_to_tensor(accumulator) for accumulator in self._accumulators]
            self._closing = self._write(window.close(position, length), totals, after=[])
        K.get_session().run(self._closing)

    def _check_other_models(self):
        others = [p for key, p in self._positions.items() if key != self._model_key]
        if any(K.batch_get_value(others)):
            raise ValueError(
                "`apply_partial_window` of an optimizer in several models is for the one whose "
                "train step was made last, and a window of another is open: give the models an "
                "optimizer each."
            )

    def _unclipped_gradients(self, loss, params):
        """The stock gradients; what is clipped is the window's average."""
        clips = {n: self.__dict__.pop(n) for n in ("clipnorm", "clipvalue") if n in self.__dict__}
        try:
            return self.get_gradients(loss, params)
        finally:
            self.__dict__.update(clips)

    def _window_state(self):
        """Position, length and next length of the window, as values."""
        if self._window is None:
            return [tf.constant(value, tf.int64) for value in (0, 1, 1)]
        return [tf.convert_to_tensor(variable) for variable in self._window]

    def _totals(self, grads):
        """The window's gradient sums with these gradients in them."""
        if not self._accumulates:
            return list(map(tf.convert_to_tensor, grads))
        return list(map(kernels.add, map(tf.convert_to_tensor, self._accumulators), grads))

    def _branch(self, step, grads, after):
        """One conditional: the update of a window's end, or the additions inside it."""

        def accumulate():
            added = list(map(kernels.accumulate, self._accumulators, grads))
            return self._write_counters(step, after=added)

        def update():
            return self._write(step._replace(switch=1), self._totals(grads), after=[])

        with _barrier([after, grads, step]):
            return tf.cond(step.switch > 0, update, accumulate)

    def _write(self, step, totals, after):
        """All assignments: none before all values are there, the counters last."""
        # A step has nothing of missing gradients here, which are an error.
        step = window.Step(*(None if v is None else tf.cast(v, tf.int64) for v in step))
        averages = self._clipped([self._average(step, total) for total in totals])
        scalars = {
            dtype: self._scalars(step, dtype) for dtype in set(map(K.dtype, self._variables))
        }
        operations = []
        with _barrier([after, totals, averages, scalars, step]):
            for i, variable in enumerate(self._variables):
                operations += self._write_variable(
                    i, variable, averages[i], totals[i], scalars[K.dtype(variable)]
                )
        return self._write_counters(step, after=operations)

    def _write_counters(self, step, after):
        operations = list(after)
        with tf.control_dependencies(operations):
            if self._accumulates:
                position, length, _ = self._window
                operations += [K.update(position, step.position), K.update(length, step.length)]
            operations.append(K.update_add(self.iterations, step.switch))
        return tf.group(*operations)

    def _average(self, step, total):
        scale = window.scale(ops, step, self.reduction, lambda x: tf.cast(x, total.dtype))
        return kernels.gate(total, scale)

    def _clipped(self, grads):
        """What the stock optimizers clip to; they have a conditional for it."""
        clipnorm, clipvalue = (getattr(self, name, 0) for name in ("clipnorm", "clipvalue"))
        if clipnorm > 0:
            norm = tf.sqrt(sum(tf.reduce_sum(tf.square(g)) for g in grads))
            factor = ops.where(norm >= clipnorm, clipnorm / norm, tf.ones_like(norm))
            grads = [factor * g for g in grads]
        if clipvalue > 0:
            grads = [tf.clip_by_value(g, -clipvalue, clipvalue) for g in grads]
        return grads

    def _scalars(self, step, dtype):
        """What the update of a variable of this data type needs besides tensors."""
        switch = tf.cast(step.switch, dtype)
        rule = self._rule()
        rate = tf.cast(self.learning_rate, dtype)
        if self.initial_decay > 0:
            updates = tf.cast(self.iterations, dtype)
            rate = rules.decayed(rate, tf.cast(self.decay, dtype), updates)
        hyperparameters = {
            name: _scalar(getattr(self, name), dtype) for name in rule.hyperparameters
        }
        update = tf.cast(self.iterations + 1, dtype)
        coefficients = rule.coefficients(ops, switch, rate, update, **hyperparameters)
        return {
            "switch": switch,
            "hold": 1 - switch,
            "rule": kernels.kernel_scalars(rule, coefficients),
        }

    def _write_variable(self, i, variable, average, total, scalars):
        rule = self._rule()
        slots = [self._slots[slot, i] for slot in rule.slots]
        switch = scalars["switch"]
        average = tf.cast(average, variable.dtype.base_dtype)
        operations = kernels.apply_rule(rule, scalars["rule"], average, variable, slots)
        if self._accumulates:
            hold = tf.cast(scalars["hold"], total.dtype)
            operations.append(K.update(self._accumulators[i], kernels.gate(total, hold)))
        constraint = getattr(variable, "constraint", None)
        if constraint is not None:
            with tf.control_dependencies(operations):
                value = variable.read_value()
                chosen = ops.where(switch > 0, constraint(value), value)
                operations.append(K.update(variable, chosen))
        return operations


# A variable as far as a state goes: here a variable's own shape is a list of `Dimension`.
_Shape = namedtuple("_Shape", "shape")


def _clips(given):
    """The stock arguments for clipping, taken out of `given`."""
    names = "clipnorm", "clipvalue", "global_clipnorm"
    clips = {n: given.pop(n) for n in names if n in given}
    clips = {n: arguments.check_clip(n, value) for n, value in clips.items() if value is not None}
    if "global_clipnorm" in clips:
        if "clipnorm" in clips:
            raise ValueError(
                "`clipnorm` is the norm of all gradients together on this Keras, as "
                f"`global_clipnorm` is: give one of them. Received: {clips}"
            )
        clips["clipnorm"] = clips.pop("global_clipnorm")
    return clips


def _barrier(values):
    """What is made in here comes after all values: through one operation, not each after each."""
    values = [value for value in tf.nest.flatten(values) if value is not None]
    return tf.control_dependencies([tf.group(*values)])


def _file_name(name):
    """A name in a state as one in a graph, without the rule's."""
    return "/".join(name.split(".")[-2:])


def _no_scope():
    # The names of all weights must find room in an attribute of HDF5, which has 64 kB.
    return tf.name_scope("")


def _counter(name, value):
    with _no_scope():
        return K.variable(value, "int64", name)


def _zeros(variable, dtype, name):
    with _no_scope():
        return K.zeros(K.int_shape(variable), dtype, _file_name(name))


def _sum_type(variable):
    # A sum of many half precision gradients overflows or stalls in half precision.
    return "float32" if K.dtype(variable) == "float16" else K.dtype(variable)


def _scalar(value, dtype):
    # A cast of a number is by way of float32.
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype)


def _start_from(stock, arrays):
    """Have a stock optimizer save these arrays, and go on from them when it gets its variables."""
    get_updates = stock.get_updates

    def get_updates_and_restore(*args, **kwargs):
        del stock.get_updates
        updates = get_updates(*args, **kwargs)
        stock.set_weights(arrays)
        return updates

    stock.weights = [K.variable(array, array.dtype) for array in arrays]
    stock.get_updates = get_updates_and_restore


def _register(cls):
    """Files with these classes load without `custom_objects`."""
    keras.utils.get_custom_objects()[cls.__name__] = cls
    return cls


@_register
class SGDAccumulate(AccumulatingOptimizer, _stock.SGD):
    unsigned = ()

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._has_momentum = K.get_value(self.momentum) != 0

    def _rule(self):
        return rules.SGD(momentum=self._has_momentum, nesterov=self.nesterov)


@_register
class AdamAccumulate(AccumulatingOptimizer, _stock.Adam):
    def _rule(self):
        return rules.AMSGrad() if self.amsgrad else rules.Adam()


@_register
class AMSGradAccumulate(AccumulatingOptimizer, _stock.Adam):
    fixed = {"amsgrad": True}

    def _rule(self):
        return rules.AMSGrad()


@_register
class RMSpropAccumulate(AccumulatingOptimizer, _stock.RMSprop):
    momentum = 0.0  # the stock optimizer of this Keras has none

    def _rule(self):
        return rules.RMSprop(self.momentum, centered=False, epsilon_in_root=False)


class ApplyPartialWindow(partial_window.ApplyPartialWindow, keras.callbacks.Callback):
    __doc__ = partial_window.ApplyPartialWindow.__doc__.format(
        host="keras2", import_keras="import keras"
    )

    def on_batch_end(self, batch, logs=None):
        # Keras 2.2 validates before it says that the epoch has ended, and doesn't say that it does.
        steps = self.params["steps"]
        if not steps:
            steps = math.ceil(self.params["samples"] / self.params["batch_size"])
        if batch + 1 == steps:
            self._close()


__getattr__ = names.fallback(__name__)
