"""The variables of an optimizer on Keras 2, and the state by its names.

Each compiled model gets variables of its own. `iterations` and all other variables that the
constructor creates are shared by all models.
"""

from collections import namedtuple

import keras
import numpy as np
import tensorflow as tf

from keras_accum import base, states
from keras_accum.keras2 import recording

K = keras.backend


class State(base.Optimizer):
    """A base class that comes before a stock optimizer class."""

    _variables = _kept = _made = _window = _accumulators = _closing = _state_format = None

    def _forget(self):
        """Drop all variables of a model, as before the first model or between two models."""
        self._variables = []
        self._kept = {}  # slots and scalars, by their names in a state
        self._made = None  # the variables that the stock optimizer has created
        self._window = None
        self._accumulators = []
        self._closing = None

    def _build(self, params):
        """Create the state for these variables, anew for each compiled model.

        Without a rule, slots and scalars aren't created here: the stock optimizer creates them as
        part of an update.
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
        """The number of updates made, as `decay` and bias correction count. An int."""
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
        """Return the names of the stock optimizer's slots or scalars, without rule and index."""
        names = [name for name in self._layout_of(2).names if belongs(states.index_of(name))]
        return tuple(name.split(".")[1] for name in names)

    def _layout_of(self, variables):
        """Return the layout of the stock optimizer's state for this number of variables."""
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
        return self._is_built  # the graph already has a train step

    def _list_names(self, variables, stock):
        if not variables:
            return ["completed_updates"]
        of_rule = self._rule_name, self._rule_scalars, self._rule_slots
        return states.slot_major(*of_rule, variables, self._accumulates and not stock)

    def _state_names(self, variables):
        return self._list_names(variables, stock=False) + list(self._rate_state())

    def _state_variables(self):
        """Return all weights by their names, in the order of `_list_names`."""
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
        shapes = [Shape(K.int_shape(variable), K.dtype(variable)) for variable in self._variables]
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

    def _keep_waiting(self, state):
        super()._keep_waiting(state)
        self.weights = list(self._state_variables().values())

    def get_weights(self):
        """Return the state as a list of arrays, in the order of files."""
        return K.batch_get_value(self.weights)


# The part of a variable that a state needs. A variable's own shape is a list of `Dimension`.
Shape = namedtuple("Shape", "shape dtype")


def _file_name(name):
    """Return the name in a graph for a name in a state, without the name of the rule."""
    return "/".join(name.split(".")[-2:])


def _no_scope():
    # Short names: the names of all weights must fit into one HDF5 attribute of 64 kB.
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
