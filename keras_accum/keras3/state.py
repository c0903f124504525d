"""The state of an accumulating optimizer on Keras 3: reading, writing, loading and counting."""

import keras
import numpy as np

from keras_accum import base, family, rules, states
from keras_accum.keras3 import variables
from keras_accum.keras3.backend import to_numpy


class State(variables.StateByNames, base.Optimizer):
    """A base class that comes before a stock optimizer class."""

    def build(self, variables):
        if self.built:
            return
        if not variables:
            # Keras's HDF5 loader builds on an empty list. If no state is loaded afterwards, a step
            # must raise an error, as it does with `built`, and not start with a fresh optimizer.
            self.built = True
            return
        accumulation, port = self._accumulation, self._accumulation.port
        before, kept, pending = dict(vars(self)), len(self._variables), self._pending
        with port.eagerly():
            state = self._read_state() if pending else None
        waiting, pending.variables = pending.variables, {}
        try:
            with port.build_scope(variables):
                super().build(variables)
                port.variables = self._trainable_variables
                family.check_attributes(self, vars(self).keys() - before)
                self._track_all()
                self._build_window()
            if state is not None:
                with port.eagerly():
                    self._write_state(self._fitted_to_variables(state))
                    accumulation.training.start()
        except Exception:
            # A step would start with a fresh optimizer. The state waits for its own variables.
            for variable in self._variables[kept:]:
                self._tracker.untrack(variable)
            vars(self).clear()
            vars(self).update(before)
            self._slots_by_name.clear()
            self._trainable_variables_indices.clear()
            port.variables, accumulation.window, pending.variables = [], None, waiting
            raise

    def _build_window(self):
        port = self._accumulation.port
        if self._accumulation.options.reduces_late and any(map(port.overwrites, port.variables)):
            raise ValueError(
                "all_reduce='per_window' can't be used with float8, whose scales are overwritten "
                "by gradients and not summed. Leave all_reduce out."
            )
        super()._build_window()

    @classmethod
    def _from_arguments(cls, config):
        # A class with an optimizer inside has a config of this optimizer, to be read first.
        return cls._from_stock_config(config, None)

    @property
    def completed_updates(self):
        """The number of updates made, as schedules, `decay` and bias correction count. An int."""
        return self._count("completed_updates", to_numpy(self.iterations))

    @property
    def _is_built(self):
        return bool(self._accumulation.port.variables)

    @property
    def variables(self):
        if self._pending:
            return self._waiting_variables()
        # Not the stock optimizer's list, which may have the variables of an inner optimizer twice.
        norms = self._accumulation.norms.variables
        return self._variables + norms * self._accumulation.port.steps_return_state

    def _add_waiting(self, name, array):
        return keras.Variable(array, trainable=False, name=name)

    def _layout(self):
        found = self._state_variables()
        return {n: tuple(v.shape) for n, v in found.items() if n != "state_format"}

    def _expected_layout(self, state, variables):
        """Return what a state must have before the variables, which decide what else, are known."""
        options, rule = self._accumulation.options, f"{self._rule_name}."
        indices = range(len(variables))
        shapes = dict.fromkeys(self._shared_variables(), ())
        for name, array in state.items():
            index = states.index_of(name)
            is_of_variables = name.startswith((rule, "moving_average.")) and (
                name.count(".") == 1 if index is None else index in indices
            )
            if is_of_variables or states.is_unnamed(name):
                shapes[name] = array.shape
        if any(map(states.is_of_window, state)):
            sums = [f"accumulator.{i}" for i in indices]
            if options.accumulates:
                more = [states.WEIGHT] * options.weighs + ["unapplied"] * ("unapplied" in state)
                shapes.update(dict.fromkeys([*states.WINDOW, *more], ()))
                shapes[states.MISSING] = (len(variables) + 1,)
            if options.accumulates or self.gradient_accumulation_steps:
                shapes.update({name: np.shape(state.get(name, ())) for name in sums})
        return shapes

    def _order_of(self, state, variables):
        state = {**self._shared_variables(), **state}
        if any(map(states.is_unnamed, state)):
            return states.in_list_order(state)
        return [*state, *["state_format"] * ("accum_iters" in state)]

    def _waiting_variables(self):
        """Return the variables of a state that waits, in the order of a file without names."""
        waiting = self._pending.variables
        if any(map(states.is_unnamed, waiting)):
            return list(waiting.values())
        # A state by names may have any order. An optimizer for variables like these tells its own.
        likeness = self._like(variables.constructor_arguments(self))
        arrays = states.by_index({n: v for n, v in waiting.items() if n != states.MISSING})
        likeness.build([keras.Variable(np.zeros(array.shape)) for array in arrays])
        order = likeness._state_variables()
        if waiting.keys() - order.keys():
            self._check_is_built("variables")
        return [waiting[name] for name in order if name in waiting]

    def _fitted_to_variables(self, state):
        if any(map(states.is_unnamed, state)):
            values = {"state_format": np.asarray(states.FORMAT), **self._rate_state(), **state}
            state = self._named([values[name] for name in states.in_list_order(values)])
        return super()._fitted_to_variables(state)

    def _read_state(self):
        state = {
            name: to_numpy(variable)
            for name, variable in self._state_variables().items()
            if name != "state_format"
        }
        return states.without_idle(state)

    def _keep_waiting(self, state):
        super()._keep_waiting(state)
        self.built = False  # Keras's HDF5 loader calls `build` with an empty list

    def _rate_state(self):
        if not isinstance(self._learning_rate, keras.Variable):
            return {}
        return {"learning_rate": to_numpy(self._learning_rate)}

    def _write_state(self, state):
        found = self._state_variables()
        for name, value in state.items():
            found[name].assign(value)

    def _write_shared(self, state):
        for name, variable in self._shared_variables().items():
            if name in state:
                variable.assign(state[name])

    def _named(self, arrays):
        arrays = variables.without_loss_scale(arrays, self.name)
        if self._is_built:
            return super()._named(arrays)
        # Which array is what depends on the variables: the list waits for them.
        arrays, rule = [states.as_array(array) for array in arrays], self._rule_name
        if rule in states.NO_COUNT and arrays and arrays[0].ndim:
            self._warn_of_no_count()
            arrays.insert(0, np.asarray(0))
        options, scalars = self._accumulation.options, len(states.KERAS_2_SCALARS.get(rule, ()))
        state = states.unnamed(
            arrays, scalars, bool(self._rate_state()), options.accumulates, options.weighs
        )
        if state is None:
            raise self._no_state(arrays)
        states.check_numbers(state, self._described)
        if "window_position" not in state:
            self._pending.convert_count(state, options.accum_iters)
        return state

    def _rate_in_use(self):
        rate = float(to_numpy(self.learning_rate))
        return rules.decayed(rate, self.decay, self.completed_updates)
