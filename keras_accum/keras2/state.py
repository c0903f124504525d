"""The variables of an optimizer on Keras 2, and the state by its names.

Each compiled model gets variables of its own. `iterations` and all other variables that the
constructor creates are shared by all models.
"""

from collections import namedtuple

import keras
import numpy as np

from keras_accum import base, states
from keras_accum.keras2.port import make

K = keras.backend


class State(base.Optimizer):
    """A base class that comes before a stock optimizer class."""

    @property
    def completed_updates(self):
        """The number of updates made, as `decay` and bias correction count. An int."""
        return int(K.get_value(self.iterations))

    def _check_is_between_steps(self):
        # This host doesn't call the method in a traced function, but its models may share an
        # optimizer, and each model has a window of its own.
        if self._accumulation.port.others_are_open():
            raise ValueError(
                "`apply_partial_window` of an optimizer in several models is for the model whose "
                "train step was made last, but another model's window is open: give each model its "
                "own optimizer."
            )

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
        layout = self._accumulation.port.layout_of(2)
        names = [name for name in layout.names if belongs(states.index_of(name))]
        return tuple(name.split(".")[1] for name in names)

    @property
    def _is_built(self):
        return bool(self._accumulation.port.variables)

    def _list_names(self, variables, stock):
        if not variables:
            return ["completed_updates"]
        of_rule = self._rule_name, self._rule_scalars, self._rule_slots
        accumulates = self._accumulation.options.accumulates and not stock
        return states.slot_major(*of_rule, variables, accumulates)

    def _state_names(self, variables):
        return self._list_names(variables, stock=False) + list(self._rate_state())

    def _state_variables(self):
        """Return all weights by their names, in the order of `_list_names`."""
        if self._pending:
            return dict(self._pending.variables)
        window = self._accumulation.window
        of_window = {} if window is None else window.named
        return {**self._shared_variables(), **self._accumulation.port.slots, **of_window}

    def _layout(self):
        shapes = shapes_of(self._accumulation.port.variables)
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
        return make(K.variable, array, array.dtype, name)

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


def shapes_of(variables):
    return [Shape(K.int_shape(variable), K.dtype(variable)) for variable in variables]
