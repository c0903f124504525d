"""The accumulating optimizer of Keras 3: its variables, and attributes that only Keras 3 has.

With `accum_iters=1`, and without `decay` and `skip_nonfinite`, the stock optimizer's own code runs.
"""

from keras_accum import base
from keras_accum.keras3.hooks import Hooks, backend
from keras_accum.options import ReadOnly, check_attributes


class AccumulatingOptimizer(Hooks, base.Optimizer):
    """The base class of all optimizers on Keras 3; it comes before the stock class."""

    _port = backend.Port
    decay = ReadOnly("decay")

    def build(self, variables):
        if self.built:
            return
        if not variables:
            # Keras's HDF5 loader builds on an empty list. If no state is loaded afterwards, a step
            # must raise an error, as it does with `built`, and not start with a fresh optimizer.
            self.built = True
            return
        accumulation, port = self._accumulation, self._accumulation.port
        before, kept = dict(vars(self)), len(self._variables)
        try:
            with accumulation.state.restored(variables), port.build_scope(variables):
                super().build(variables)
                port.variables = self._trainable_variables
                check_attributes(self, vars(self).keys() - before)
                port.track_all()
                accumulation.open_window()
        except Exception:
            # A step would start with a fresh optimizer. The state waits for its own variables.
            for variable in self._variables[kept:]:
                self._tracker.untrack(variable)
            vars(self).clear()
            vars(self).update(before)
            self._trainable_variables_indices.clear()
            accumulation.window = None
            port.forget()
            raise

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        variable = super().add_variable_from_reference(
            reference_variable, name=name, initializer=initializer
        )
        port = self._accumulation.port
        port.slots[name, port.key(reference_variable)] = variable
        return variable

    @property
    def variables(self):
        accumulation = self._accumulation
        if accumulation.state.waiting:
            return accumulation.state.variables()
        # Not the stock optimizer's list, which may have the variables of an inner optimizer twice.
        norms = accumulation.norms.variables
        return self._variables + norms * accumulation.port.steps_return_state

    @property
    def gradient_accumulation_steps(self):
        """Keras's own accumulation. None, except where the constructor was given a number."""
        return self._steps_of_keras

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps):
        if self._accumulation.is_ready:
            raise AttributeError(
                "`gradient_accumulation_steps`, Keras's own accumulation, can't be set on an "
                "optimizer that accumulates: set `accum_iters`. "
                f"Received: gradient_accumulation_steps={steps!r}"
            )
        self._steps_of_keras = steps

    @property
    def lr(self):
        """Another name for `learning_rate`, from Keras 2."""
        return self.learning_rate

    @lr.setter
    def lr(self, learning_rate):
        self.learning_rate = learning_rate

    @classmethod
    def _from_arguments(cls, config):
        # A class with an optimizer inside has a config of this optimizer, to be read first.
        return cls._from_stock_config(config, None)
