"""Which states fit one optimizer. No host is imported here.

`states` has the checks themselves, for any layout. Here they meet what one optimizer has.
"""

import numpy as np

from keras_accum import lists, states

# What a list of arrays has and a state by names hasn't. A state has its format in addition.
OF_LISTS = ("state_format", "unapplied")
FORMAT = {"state_format": np.asarray(states.FORMAT)}


class Fitting:
    """Completes a state that fits the optimizer, and raises a StateError for any other."""

    def __init__(self, accumulation, lists_of_optimizer):
        self._accumulation, self._lists = accumulation, lists_of_optimizer
        self._port = accumulation.port

    def shapes(self, named):
        """Return the names and shapes of the built variables, in the order of files."""
        return {name: self._port.shape_of(variable) for name, variable in named.items()}

    def to_built(self, state, named):
        """Return a complete state for the built variables, given by their names."""
        state = self._fitted(state, self.shapes(named))
        self._check_complex(state, named)
        return state

    def to_variables(self, state, variables):
        """Return a complete state for variables of the model, before the optimizer is built."""
        state = self._fitted(state, self._port.shapes_for(variables))
        self._check_complex(state, dict(enumerate(variables)))
        return state

    def before_build(self, state):
        """Return a state completed as far as it can be checked without variables."""
        if self._port.knows_names and (states.count(state) or not states.has_unnamed(state)):
            return self._fitted(state, self._port.shapes_for(states.by_index(state)))
        options = self._accumulation.options
        layout = states.loose_layout(
            state,
            {*self._port.shared_variables(), *self._port.rate_state()},
            self._port.rule_name,
            options,
            keeps_sums=options.accumulates or self._port.accumulates_itself,
        )
        return self._completed(state, layout)

    def _fitted(self, state, shapes):
        """Return a complete state of an optimizer with these names and shapes."""
        if states.has_unnamed(state):
            values = {**FORMAT, **self._port.rate_state(), **state}
            arrays = [values[name] for name in lists.order(values)]
            state = self._lists.named(arrays, shapes)
        layout = {name: shape for name, shape in shapes.items() if name not in OF_LISTS}
        layout.update(dict.fromkeys(self._port.rate_state(), ()))
        if self._accumulation.options.accumulates and self._port.counts_missing:
            layout[states.MISSING] = (states.count(layout) + 1,)
        if not states.is_fresh(state):
            return self._completed(state, layout)
        state = self._completed(state, layout, self._port.initial_values())
        return {**state, **self._fresh_averages(layout)}

    def _fresh_averages(self, layout):
        """Return the moving averages before the first update: the weights."""
        return {
            name: self._port.read(self._port.variables[states.index_of(name)])
            for name in layout
            if name.startswith("moving_average.")
        }

    def _completed(self, state, layout, initial=None):
        state = states.fitted(state, layout, self._lists.owner)
        length = self._accumulation.options.length_at(int(state["completed_updates"]))
        return states.completed(state, layout, length, initial)

    def _check_complex(self, state, variables):
        """Raise a StateError if an array is complex and its place is real.

        `variables` has the variables by the names in a state, or by the index of their weight.
        """
        if any(map(np.iscomplexobj, state.values())):
            real = {key for key, v in variables.items() if "complex" not in str(v.dtype)}
            states.check_complex(
                state, lambda name: not {name, states.index_of(name)} & real, self._lists.owner
            )
