"""What every backend of Keras 3 does in the same way, by `keras.ops`.

Each backend's module, `backend_<name>`, has a subclass of `Port` and a subclass of `Hooks`.
"""

import contextlib
import numbers

import keras
from keras import ops

from keras_accum import states
from keras_accum.keras3 import selection
from keras_accum.keras3.state import StatePort


def path_of(variable):
    return getattr(variable, "path", variable.name)  # a tf.Variable has no path


def dtype_of(variable):
    return keras.backend.standardize_dtype(variable.dtype)


def as_written(method):
    """Return a method that runs as written, also where a traced function would convert it."""
    return method


class Port(StatePort):
    """Keras 3 on any backend."""

    ops = counts_with = ops
    window_order = ("state_format", *states.WINDOW, states.WEIGHT, "accumulator", states.MISSING)
    tells_of_the_end = True
    # True if `variables` must have everything that a train step of `fit` writes.
    steps_return_state = True

    def __init__(self, optimizer, given):
        super().__init__(optimizer, given)
        self.selections = {}  # the selection of the update that each replica runs

    @property
    def loss_scale(self):
        return self.optimizer.loss_scale_factor or 1.0

    # -- the model's variables ---------------------------------------------------------------------

    def name_of(self, variable):
        return path_of(variable)

    def are_frozen(self, variables):
        # A native variable can't be frozen: its `trainable` never changes.
        return [isinstance(v, keras.Variable) and not v.trainable for v in variables]

    def overwrites(self, variable):
        return getattr(variable, "overwrite_with_gradient", False)

    # -- the variables of a window -----------------------------------------------------------------

    @property
    def scalar_dtype(self):
        return "float64" if keras.config.floatx() == "float64" else "float32"

    def counter_scope(self):
        return contextlib.nullcontext()

    def add_counter(self, name, value, shape=()):
        with self.counter_scope():
            return self._add(name, value, "int", shape)

    def add_scalar(self, name, value):
        return self._add(name, value, self.scalar_dtype)

    def _add(self, name, value, dtype, shape=()):
        return self.optimizer.add_variable(
            shape=shape,
            initializer=keras.initializers.Constant(value),
            dtype=dtype,
            aggregation="only_first_replica",
            name=name,
        )

    def add_sum(self, variable):
        if dtype_of(variable) not in ("float16", "bfloat16"):
            return self.optimizer.add_variable_from_reference(variable, name="window_accumulator")
        # A sum of many half precision gradients overflows or stalls in half precision.
        return self.optimizer.add_variable(
            shape=variable.shape,
            dtype="float32",
            name=f"{path_of(variable).replace('/', '_').replace(':', '_')}_window_accumulator",
            layout=getattr(variable, "_layout", None),
        )

    def variable_scope(self):
        """The scope for making variables outside of `build`."""
        return contextlib.nullcontext()

    def add_norm(self, name):
        with self.variable_scope():
            return keras.Variable(
                -1.0,
                dtype=self.scalar_dtype,
                trainable=False,
                aggregation="only_first_replica",
                name=name,
            )

    def build_scope(self, variables):
        """The scope for building the stock optimizer for these variables."""
        return contextlib.nullcontext()

    # -- values ------------------------------------------------------------------------------------

    def taking(self, gradients, variables):
        """Return a scope in which the gradients that a train step gives are taken."""
        return contextlib.nullcontext(gradients)

    def value(self, variable):
        return variable.value

    def copy(self, variable):
        """Return a copy of a variable's value, which later writes don't change."""
        return self.value(variable)

    def one_after(self, gradients):
        return ops.cast(1, self.updates.dtype)

    def count_if(self, condition):
        return ops.cast(ops.cast(condition, "bool"), self.updates.dtype)

    def cast(self, value, dtype):
        return ops.cast(value, dtype)

    def times(self, value, factor):
        return ops.where(factor == 0, 0.0, value * factor)

    def plus(self, total, gradient):
        return total + ops.cast(gradient, total.dtype)

    def totals(self, sums, gradients, variables):
        def total(old, gradient, variable):
            add = ops.maximum if self.overwrites(variable) else self.plus
            return add(self.value(old), gradient)

        return list(map(total, sums, gradients, variables))

    def all_finite(self, gradients):
        finite = ops.all(ops.stack([ops.all(ops.isfinite(g)) for g in gradients]))
        return ops.cast(finite, self.updates.dtype)

    def is_finite(self, value):
        return ops.isfinite(value)

    def norm(self, tensors):
        dense = [ops.cast(self.dense(t), self.scalar_dtype) for t in tensors]
        return ops.sqrt(sum(ops.sum(ops.square(tensor)) for tensor in dense))

    def without_gradient(self, weight):
        if isinstance(weight, numbers.Real):
            return weight
        return ops.stop_gradient(ops.convert_to_tensor(weight))

    # -- writes ------------------------------------------------------------------------------------

    def selection_of(self, switch, own):
        """Return the scope that selects the writes of an update."""
        return selection.SelectWrites(self, switch, own)

    @property
    def selection(self):
        """The selection of the current update, or None; across replicas, any replica's."""
        return self.selections.get(self.replica()) or next(iter(self.selections.values()), None)

    @property
    def selects_writes(self):
        """The selection of the current update if it selects single writes, else None."""
        found = self.selection
        return found if isinstance(found, selection.SelectWrites) else None

    def update(self, step, averages, variables, switches):
        own = {
            self.index(variable): switch
            for variable, switch in zip(variables, switches)
            if switch is not step.switch
        }
        with self.selection_of(step.switch, own):
            self.stock.apply(self.optimizer, averages, variables)
        self.check_update()

    def count_updates(self, switch):
        """Nothing: the stock optimizer counts its updates, and the count is selected."""

    def add_to(self, target, gradient):
        target.assign(self.plus(self.value(target), gradient))

    def add_all(self, sums, gradients, variables):
        for total, gradient, variable in zip(sums, gradients, variables):
            add = self._keep_greater if self.overwrites(variable) else self._add_to
            self.on(total, add, gradient)

    def _add_to(self, total, target, gradient):
        self.add_to(target, gradient)

    def _keep_greater(self, total, target, gradient):
        target.assign(ops.maximum(self.value(target), gradient))

    def rest(self, total, hold, written):
        # XLA copies an accumulator unless it can prove that every read comes before the write. The
        # comparison, which is never true, makes the rest depend on the written weights and so gives
        # XLA the proof.
        rest = self.times(total, hold)
        return ops.where(self.value(written) > float("inf"), total, rest)


class Hooks:
    """What the code of a stock optimizer calls; a base class that comes before the stock class."""

    def update_step(self, gradient, variable, learning_rate):
        self._accumulation.running.check_is_update("update_step")
        writes = self._accumulation.port.selects_writes
        if writes is None:
            super().update_step(gradient, variable, learning_rate)
        else:
            with writes.of(variable):
                self._step_of_stock(gradient, variable, learning_rate)

    def _step_of_stock(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
