"""The JAX backend: its conditional, and the plain `keras.ops` form of all other backend code.

The other backends inherit from this module's `Backend`.
"""

import contextlib
import weakref

import keras
from keras import ops

from keras_accum import train_functions
from keras_accum.keras3.gates import SelectWrites

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
            return self._read(arrays)
        return self._known

    @staticmethod
    def _read(arrays):
        return [int(array) for array in arrays]

    def _keep(self, counters, results):
        self._known = counters
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
        return [arrays[id(counter)] for counter in self._optimizer._counters().values()]


class Backend:
    """A base class that comes before a Keras 3 optimizer class. JAX uses it without changes."""

    _can_reduce_late = False
    # True if `variables` must have everything that a train step of `fit` writes.
    _steps_return_state = True
    # The module that computes with the counters.
    _counts_with = ops

    def _is_traced(self):
        """True if computations become part of a traced program."""
        import jax

        return isinstance(ops.zeros(()), jax.core.Tracer)

    # -- where variables are made and written --------------------------------------------------

    def _counter_scope(self):
        return contextlib.nullcontext()

    def _variable_scope(self):
        """The scope for creating variables outside of `build`."""
        return contextlib.nullcontext()

    def _sum_scope(self):
        """The scope for creating the gradient sums of a window."""
        return contextlib.nullcontext()

    def _eagerly(self):
        """A scope in which an assignment isn't part of a graph that is being traced."""
        return contextlib.nullcontext()

    def _build_scope(self, variables):
        """The scope for building the stock optimizer for these variables."""
        return contextlib.nullcontext()

    @staticmethod
    def _can_be_written(tensor):
        """True if a tensor of the framework itself is a variable."""
        return False

    @staticmethod
    def _was_written(tensor):
        """True if a tensor that an update has made is a variable."""
        return False

    # -- replicas --------------------------------------------------------------------------------

    def _in_replicas(self, function, *arguments):
        """Call a function between train steps in the way a train step would call it."""
        function(*arguments)

    def _sum_over_replicas(self, grads, variables):
        return grads

    def _replica(self):
        return 0

    def _replicas(self):
        """The number of replicas that share a micro-batch."""
        return 1

    def _across_replicas(self, function, *tensors):
        """Call a function that writes variables."""
        function(*tensors)

    def _on_variable(self, variable, function, *tensors):
        """Call `function(variable, target, *tensors)`, where `target` is the writable variable."""
        function(variable, variable, *tensors)

    # -- gates -----------------------------------------------------------------------------------

    def _conditional(self, switch, update, accumulate, *tensors):
        """Call one of two functions that write weights and the optimizer's variables."""
        import jax

        written = [*self._trainable_variables, *self._variables, *self._watched_norms]

        def functional(function):
            def new_values(values):
                with keras.StatelessScope(state_mapping=list(zip(written, values))) as scope:
                    function(*tensors)
                return [scope.get_current_value(v) for v in written]

            return new_values

        branches = functional(update), functional(accumulate)
        try:
            new = jax.lax.cond(switch > 0, *branches, [v.value for v in written])
        except jax.errors.UnexpectedTracerError as error:
            raise TypeError(_LEAKED.format(self._stock_class.__name__)) from error
        for variable, value in zip(written, new):
            variable.assign(value)

    def _is_due(self, step):
        """True if the step updates, False if not; None if the switch is a tensor."""
        return self._decided

    def _gate_for(self, step, own):
        return SelectWrites(self, step, own)

    @property
    def _writes(self):
        """The open gate if it selects single writes, else None."""
        gate = self._open_gate
        return gate if isinstance(gate, SelectWrites) else None

    def update_step(self, gradient, variable, learning_rate):
        if self._writes is None:
            return super().update_step(gradient, variable, learning_rate)
        with self._writes.of(variable):
            self._step_of_stock(gradient, variable, learning_rate)

    def _step_of_stock(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)

    # -- counters --------------------------------------------------------------------------------

    def _counted_after(self, grads):
        """Return the number 1, which depends on the gradients where a backend needs that."""
        return self._count_of_one()

    def _count_of_one(self):
        return ops.cast(1, self._iterations.dtype)

    def _count_value(self, counter):
        return self._value_of(counter)

    # -- sums ------------------------------------------------------------------------------------

    def _add_all(self, grads, variables):
        """Add gradients to the accumulators of their variables."""
        for gradient, variable in zip(grads, variables):
            overwrites = self._overwrite_variable_with_gradient(variable)
            add = self._keep_greater if overwrites else self._add_gradient
            self._on_variable(self._sum_of(variable), add, gradient)

    def _keep_greater(self, accumulator, target, gradient):
        self.assign(target, ops.maximum(self._value_of(target), gradient))

    def _add_gradient(self, accumulator, target, gradient):
        self.assign(target, self._plus(accumulator, gradient))

    def _plus(self, accumulator, gradient):
        return accumulator.value + ops.cast(gradient, accumulator.dtype)

    def _value_of(self, variable):
        return variable.value

    @staticmethod
    def _times_factor(value, factor):
        """Return value * factor; zero where the factor is zero, even for infinite or NaN values."""
        return ops.where(factor == 0, 0.0, value * factor)

    def _remainder(self, total, hold, weights):
        """Return the rest of a window's sum, computed after the weights were written.

        XLA copies an accumulator unless it can prove that every read comes before the write. The
        comparison, which is never true, makes the rest depend on the written weights and so gives
        XLA the proof.
        """
        return ops.where(
            self._value_of(weights) > float("inf"), total, self._times_factor(total, hold)
        )

    @staticmethod
    def _all_finite(grads):
        return ops.all(ops.stack([ops.all(ops.isfinite(g)) for g in grads]))

    @staticmethod
    def _dense(gradient):
        return gradient
