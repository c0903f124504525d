"""The JAX backend: its conditional, and its train functions for PythonGate."""

import weakref

import keras

from keras_accum import train_functions
from keras_accum.keras3 import backend
from keras_accum.keras3.backend import Hooks, as_written  # noqa: F401, as on every backend

_LEAKED = (
    "An update of {0} can't run with gate='conditional' on JAX, which traces the update by itself. "
    "The code of {0}, or of a schedule or constraint, keeps a value of the update in Python, such "
    "as an attribute, and uses the value outside of that update; or the code writes a variable in "
    "`ops.cond`. Construct the optimizer with gate='select', the default: both gates have the same "
    "state. A write in `ops.cond` fails on JAX in any case: write the result of `ops.where`."
)


class Picker(train_functions.Picker):
    """Two train functions on JAX, which take the whole state and return the next state.

    While Keras passes in the same counter arrays that the last call returned, Python knows their
    values and needn't wait for the device.
    """

    def __init__(self, model, in_place_of):
        super().__init__(model, in_place_of)
        self._known = []
        self._references = []  # weak references to the arrays of the known values

    def _before(self, arguments):
        arrays = self._arrays(arguments[0])
        if not self._known or any(r() is not a for r, a in zip(self._references, arrays)):
            self._known = self._read(arrays)
        position, length, next_length, updates = self._known
        options = self._optimizer._accumulation.options
        return position, length, options.length_at(updates) if options.is_scheduled else next_length

    @staticmethod
    def _read(arrays):
        return [int(array) for array in arrays]

    def _keep(self, step, results):
        _, _, next_length, updates = self._known
        if self._optimizer._accumulation.options.is_scheduled:
            next_length = step.length
        known = step.position, step.length, next_length, updates + step.switch
        self._known = list(map(int, known))
        self._references = list(map(weakref.ref, self._arrays(results[1])))

    def check(self):
        arrays = [reference() for reference in self._references]
        if any(array is None for array in arrays):  # a callback has replaced the arrays
            return
        found = self._read(arrays)
        if found != self._known:
            raise ValueError(
                f"{train_functions.ONE_CALL} Received: the position in the window is {found[0]}, "
                f"but this number of train steps should make it {self._known[0]}."
            )

    def _arrays(self, state):
        _, _, optimizer_variables, _ = state
        arrays = {id(v): a for v, a in zip(self._optimizer.variables, optimizer_variables)}
        accumulation = self._optimizer._accumulation
        counters = [*accumulation.state.counters.values(), accumulation.port.updates]
        return [arrays[id(counter)] for counter in counters]


class Port(backend.Port):
    """Keras 3 on JAX."""

    def is_traced(self):
        import jax

        return isinstance(keras.ops.zeros(()), jax.core.Tracer)

    def branch(self, step, gradients, update, add):
        import jax

        optimizer = self.optimizer
        written = [*self.variables, *optimizer._variables, *self.accumulation.norms.variables]

        def functional(function):
            def new_values(values):
                with keras.StatelessScope(state_mapping=list(zip(written, values))) as scope:
                    function(step, gradients)
                return [scope.get_current_value(v) for v in written]

            return new_values

        branches = functional(update), functional(add)
        try:
            new = jax.lax.cond(step.switch > 0, *branches, [v.value for v in written])
        except jax.errors.UnexpectedTracerError as error:
            raise TypeError(_LEAKED.format(self.stock.__name__)) from error
        for variable, value in zip(written, new):
            variable.assign(value)
