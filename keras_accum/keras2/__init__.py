"""The optimizers for standalone Keras 2.2 and 2.3 on TensorFlow 1.

Each class is the stock optimizer of its name with another `get_updates`: it adds the gradients to
the accumulators and makes the update of their average, at `accum_iters=1` as well. SGD, Adam and
RMSprop run their rule with gated scalars (see `rules`). All others run the stock `get_updates` (see
`recording`), and what it writes is selected.

TensorFlow 1 orders nothing within a train step, and the stock optimizers leave it at that: a weight
may be overwritten before back-propagation has read it, a counter before the bias correction has.
Here all that a step computes is computed before its first write, and the counters come last.
"""

import contextlib
import inspect
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
from keras_accum.keras2 import recording  # noqa: E402

_stock = keras.optimizers
K = keras.backend
ops = tf.compat.v2  # whose `where` isn't deprecated


class AccumulatingOptimizer(base.Optimizer):
    """Everything Keras, for all classes. A class names it before its stock optimizer and may have

    * `_rule()`: the rule that belongs to the stock optimizer as it was constructed, if an update
      isn't to be made by the stock optimizer's own code;
    * `fixed`: the stock arguments that the class decides itself;
    * `rule_arguments`: what the rule takes and the stock optimizer doesn't, with defaults.
    """

    fixed = {}
    rule_arguments = {}
    _can_reduce_late = False
    _remedy = "compile the loaded model with {name}.from_optimizer(model.optimizer, accum_iters=5)"

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if AccumulatingOptimizer in cls.__bases__:
            cls._stock_class = cls.__bases__[-1]
            more = dict.fromkeys(["learning_rate", *_keywords(cls._stock_class)])
            more = {**cls.rule_arguments, **more}
            cls.__signature__ = arguments.signature(cls._stock_class, cls.fixed, more)
            cls.__doc__ = cls.__doc__ or docs.docstring(
                cls.__name__, "keras2", "import keras", cls._stock_class
            )

    def __init__(self, *args, **kwargs):
        given = arguments.bind(type(self), args, kwargs, unknown=TypeError)
        own = arguments.pop_own(type(self), given)
        if own["reduction"] == "weighted":
            raise ValueError(
                "reduction='weighted' isn't there on Keras 2.0 to 2.3, whose train step has no "
                "place for a weight: use 'mean', or a loss that sums and 'sum'."
            )
        if "decay" in given:
            given["decay"] = arguments.check_decay(given["decay"])
        if "learning_rate" in given:
            rate = arguments.check_number("learning_rate", given.pop("learning_rate"))
            given[_rate_name(self._stock_class)] = rate
        given.update(_clips(given))
        added = {name: given.pop(name, value) for name, value in self.rule_arguments.items()}

        self._given = {**given, **self.fixed}
        super().__init__(**self._given)
        _check_members(self)
        for name, value in added.items():
            setattr(self, name, value)
        self.reduction = own["reduction"]
        self.skip_nonfinite = own["skip_nonfinite"]
        self.gate = own["gate"]
        self.all_reduce = own["all_reduce"]
        self._accum_iters = own["accum_iters"]
        self._next_length = None  # one for all models, as are `iterations` and the learning rate
        self._layouts = {}  # of the stock optimizer's state, by how many variables it is for
        self._positions = {}  # in the windows of models, by the names of their variables
        self._forget()

    def _forget(self):
        """Be without variables, as before the first model and between two."""
        self._variables = []
        self._kept = {}  # slots and scalars, by their names in a state
        self._made = None  # the variables that the stock optimizer has made
        self._window = None
        self._accumulators = []
        self._closing = None

    # -- state ---------------------------------------------------------------------------------

    def _build(self, params):
        """Create the state for these variables, once more for each model that is compiled.

        Without slots and scalars where the stock optimizer makes them, as a part of an update.
        """
        self._forget()
        self._variables, rule = list(params), self._rule()
        for slot in rule.slots if rule else ():
            for i, variable in enumerate(self._variables):
                name = states.slot_name(self._rule_name, slot, i)
                self._kept[name] = _zeros(variable, K.dtype(variable), name)
        self._build_window()

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

    def _rule(self):
        return None

    @property
    def _rule_slots(self):
        rule = self._rule()
        return rule.slots if rule else self._named_in_layout(lambda i: i == 0)

    @property
    def _rule_scalars(self):
        return () if self._rule() else self._named_in_layout(lambda i: i is None)

    def _named_in_layout(self, belongs):
        """The slots or scalars of the stock optimizer, without rule and number."""
        names = [name for name in self._layout_of(1).names if belongs(states.index_of(name))]
        return tuple(name.split(".")[1] for name in names)

    def _layout_of(self, variables):
        """How the stock optimizer keeps its state for so many variables."""
        if variables not in self._layouts:
            self._layouts[variables] = recording.layout(
                lambda: self._stock_class(**self._given), self._rule_name, variables
            )
        return self._layouts[variables]

    @property
    def _is_built(self):
        return bool(self._variables)

    @property
    def _has_stepped(self):
        return self._is_built  # the train step is a part of the graph

    def _list_names(self, variables, stock):
        if not variables:
            return ["completed_updates"]
        of_rule = self._rule_name, self._rule_scalars, self._rule_slots
        return states.slot_major(*of_rule, variables, self._accumulates and not stock)

    def _state_names(self, variables):
        return self._list_names(variables, stock=False) + list(self._rate_state())

    def _state_variables(self):
        """All weights by their names, in the order of `_list_names`."""
        if self._pending:
            return dict(self._pending.variables)
        found = {"completed_updates": self.iterations}
        found.update(self._kept)
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
        if isinstance(learning_rate, numbers.Real) and "_rate" in vars(self):
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
            state = new._state_of_stock(optimizer)
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
        optimizer, state = self._stock_class(**config), self.get_state()
        K.set_value(optimizer.iterations, state["completed_updates"])
        if states.count(state):
            layout, arrays = self._layout_of(states.count(state)), states.by_index(state)
            for name, attribute in layout.attributes.items():
                K.set_value(getattr(optimizer, attribute), state[name])
            _start_from(optimizer, [_stock_array(name, state, arrays) for name in layout.files])
        return optimizer

    def _state_of_stock(self, optimizer):
        """The state of a stock optimizer that has its variables."""
        one, two = (len(self._layout_of(variables).files) for variables in (1, 2))
        layout = self._layout_of((len(optimizer.weights) - one) // (two - one) + 1)
        variables = dict(zip(layout.files, optimizer.weights))
        for name, attribute in layout.attributes.items():
            variables[name] = getattr(optimizer, attribute)
        variables["completed_updates"] = optimizer.iterations
        names = set(self._list_names(states.count(layout.names), stock=True)) & set(variables)
        return dict(zip(names, K.batch_get_value([variables[name] for name in names])))

    def __reduce__(self):
        return base.restored, (*self._how_made(), self.get_config(), self.get_state())

    def __repr__(self):
        return arguments.representation(self, "standalone Keras 2")

    # -- one micro-batch -----------------------------------------------------------------------

    def get_updates(self, loss, params):
        """The operation that makes one micro-batch's step, in a list."""
        with self._unclipped():
            grads = _stock.Optimizer.get_gradients(self, loss, params)
        state = self._released([_Shape(K.int_shape(variable)) for variable in params])
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
        if state is not None:
            self._write_state(state)
        self.weights = list(self._state_variables().values())
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

    @contextlib.contextmanager
    def _unclipped(self):
        """The stock code doesn't clip: we do, the window's average."""
        clips = {n: self.__dict__.pop(n) for n in ("clipnorm", "clipvalue") if n in self.__dict__}
        try:
            yield
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
        if self._rule():
            values = {
                dtype: self._scalars(step, dtype) for dtype in set(map(K.dtype, self._variables))
            }
        else:
            values = self._selected(step.switch, averages)
        with _barrier([after, totals, averages, values, step]):
            if self._rule():
                operations = self._write_by_rule(averages, values)
            else:
                operations = [K.update(variable, value) for variable, value in values]
            if self._accumulates:
                operations += [
                    K.update(sums, kernels.gate(total, tf.cast(1 - step.switch, total.dtype)))
                    for sums, total in zip(self._accumulators, totals)
                ]
        return self._write_counters(step, after=operations)

    def _selected(self, switch, averages):
        """What the stock optimizer writes: variables, each with its new or its old value."""
        params = self._variables
        averages = [tf.cast(g, v.dtype.base_dtype) for g, v in zip(averages, params)]
        get_updates = super().get_updates
        with self._unclipped():
            recorded = recording.record(self, get_updates, params, averages, self._made)
        if self._made is None:
            names = self._layout_of(len(params)).names
            recording.check_shapes(type(self).__name__, recorded.kept, names, params)
            kept = dict(zip(names, recorded.kept))
            self._kept = {
                name: kept[name] for name in self._list_names(len(params), stock=True)[1:]
            }
            self._made = recorded.made
        return [
            (variable, ops.where(switch > 0, value, tf.convert_to_tensor(variable)))
            for variable, value in recorded.writes
            if variable is not self.iterations  # which we count
        ]

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
        return {"switch": switch, "rule": kernels.kernel_scalars(rule, coefficients)}

    def _write_by_rule(self, averages, scalars):
        operations, rule = [], self._rule()
        for i, (variable, average) in enumerate(zip(self._variables, averages)):
            found = scalars[K.dtype(variable)]
            names = [states.slot_name(self._rule_name, slot, i) for slot in rule.slots]
            slots = [self._kept[name] for name in names]
            average = tf.cast(average, variable.dtype.base_dtype)
            written = kernels.apply_rule(rule, found["rule"], average, variable, slots)
            constraint = getattr(variable, "constraint", None)
            if constraint is not None:
                with tf.control_dependencies(written):
                    value = variable.read_value()
                    chosen = ops.where(found["switch"] > 0, constraint(value), value)
                    written.append(K.update(variable, chosen))
            operations += written
        return operations


# What Keras 2.3 takes and doesn't have in its signatures, by the class whose constructor does.
_UNSIGNED = {
    "Optimizer": ("clipnorm", "clipvalue", "global_clipnorm"),
    **dict.fromkeys(("RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax"), ("epsilon",)),
    "Nadam": ("epsilon", "schedule_decay"),
}


def _keywords(stock_class):
    """What a class takes by keyword without having it in its signature."""
    names = []
    for cls in stock_class.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(cls.__init__).parameters.values()
        names += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if cls.__module__ == _stock.__name__:
            names += _UNSIGNED.get(cls.__name__, ())
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return [name for name in names if name not in ("self", *arguments.OWN)]


def _rate_name(stock_class):
    """What the constructor calls the learning rate, if it isn't silent about it."""
    names = inspect.signature(stock_class.__init__).parameters
    return "learning_rate" if "learning_rate" in names else "lr"


def _check_members(optimizer):
    """Raise a TypeError unless the stock class has made what all of Keras's own have."""
    for name, held in (("learning_rate", "_rate"), ("iterations", "iterations")):
        if not hasattr(vars(optimizer).get(held), "initializer"):
            raise TypeError(
                f"{optimizer._stock_class.__name__} can't accumulate: it has no variable "
                f"`{name}`, which Keras's own optimizers have."
            )


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


def _stock_array(name, state, arrays):
    """What a stock optimizer has for a name in its files. None is a place that isn't used."""
    if name is None:
        return np.zeros(1, K.floatx())
    return np.asarray(state.get(name, np.zeros_like(arrays[states.index_of(name) or 0])))


def _start_from(optimizer, arrays):
    """Have a stock optimizer save these arrays, and go on from them when it gets its variables."""
    get_updates = optimizer.get_updates

    def get_updates_and_restore(*args, **kwargs):
        del optimizer.get_updates
        updates = get_updates(*args, **kwargs)
        optimizer.set_weights(arrays)
        return updates

    optimizer.weights = [K.variable(array, array.dtype) for array in arrays]
    optimizer.get_updates = get_updates_and_restore


def _register(cls):
    """Files with these classes load without `custom_objects`, by the name alone."""
    known, theirs = keras.utils.get_custom_objects(), cls._stock_class
    other = getattr(known.get(cls.__name__), "_stock_class", theirs)
    # A class that is defined once more, as in a notebook, takes the place of the old one.
    if (other.__module__, other.__qualname__) != (theirs.__module__, theirs.__qualname__):
        raise TypeError(
            f"{cls.__name__} is that of {other.__module__}.{other.__qualname__} already, and this "
            "Keras knows classes by their names alone: give the class another name. "
            f"Received: optimizer_class={theirs}"
        )
    known[cls.__name__] = cls
    return cls


@_register
class SGDAccumulate(AccumulatingOptimizer, _stock.SGD):
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


_accumulating = {
    _stock.SGD: SGDAccumulate,
    _stock.Adam: AdamAccumulate,
    _stock.RMSprop: RMSpropAccumulate,
}


def accumulating(optimizer_class):
    base.check_stock_class(optimizer_class, (_stock.Optimizer,), (_stock.TFOptimizer,))
    if optimizer_class not in _accumulating:
        base.check_members(AccumulatingOptimizer, optimizer_class, "keras")
        members = {"__module__": __name__, "_made_by": (accumulating, (optimizer_class,))}
        bases = AccumulatingOptimizer, optimizer_class
        made = type(f"{optimizer_class.__name__}Accumulate", bases, members)
        _accumulating[optimizer_class] = _register(made)
    return _accumulating[optimizer_class]


accumulating.__doc__ = docs.ACCUMULATING.format(host="keras2", import_keras="import keras")

for _name in names.OPTIMIZERS:
    if f"{_name}Accumulate" not in globals() and hasattr(_stock, _name):
        globals()[f"{_name}Accumulate"] = accumulating(getattr(_stock, _name))


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
