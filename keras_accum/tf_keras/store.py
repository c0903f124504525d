"""Variables of tf_keras's optimizers, legacy and newer, and their names in a state."""

import abc
import contextlib

import tensorflow as tf

from keras_accum.engine import parts
from keras_accum.engine.state import StateError
from keras_accum.engine.window import COUNTERS, MISSING, WEIGHT
from keras_accum.host import check_members
from keras_accum.tensorflow.replicas import write
from keras_accum.tf_keras import models, slots
from keras_accum.tf_keras.host import HOST
from keras_accum.tf_keras.imports import keras, key_of, legacy

check_members(keras, legacy.Optimizer, ["_deferred_dependencies"])  # every trackable has it
SUMS = "window_accumulator"  # the accumulators' name in checkpoints
_OURS = {"state_format", *COUNTERS, WEIGHT, MISSING, SUMS}


class TfKerasStore(parts.Store):
    """An optimizer's variables. Each style has a subclass.

    kept: the stock optimizer's variables, {(name, weight key): variable}; see `slots.find_kept`.
    """

    kept = {}
    # True while the stock optimizer creates its variables.
    _is_creating = False
    key = staticmethod(key_of)
    read = staticmethod(HOST.read)
    write = staticmethod(write)

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.created = {}  # id: (name, weight key or None, variable), created by Keras's methods

    # -- the model's variables ---------------------------------------------------------------------

    def are_frozen(self, variables):
        return models.are_frozen(self.optimizer, variables)

    def sort_variables(self, var_list):
        """Return the variables to build for, in the model's order if the model is known."""
        if any(isinstance(variable, tf.Tensor) for variable in var_list):
            raise NotImplementedError("Updating a `Tensor` is not implemented: give the variable.")
        return models.list_variables(self.optimizer, var_list)

    # -- the stock optimizer's variables -----------------------------------------------------------

    def record(self, name, variable, weight=None):
        """Note a variable created by the stock optimizer for a weight, or for all."""
        if self._is_creating:
            key = None if weight is None else self.key(weight)
            _, key, _ = self.created.get(id(weight), ("", key, None))  # a slot of a slot
            self.created.setdefault(id(variable), (name, key, variable))

    @contextlib.contextmanager
    def creating(self):
        """Scope for the stock optimizer to create its variables; it ends with naming them."""
        self._is_creating = True
        try:
            yield
        finally:
            self._is_creating = False
        for taken in _OURS & {name for name, *_ in self.created.values()}:
            raise ValueError(
                f"{self.stock_class.__name__} makes a variable called {taken!r}, which is a name "
                "that this package uses: rename it."
            )
        self.kept = slots.find_kept(self.optimizer, self.created.values())

    # -- the state, between train steps ------------------------------------------------------------

    @property
    def updates(self):
        return self.optimizer.iterations

    def by_name(self):
        keys = list(map(self.key, self.variables))
        return slots.name_variables(self.optimizer, self.kept, keys, self.rule_name)

    def rate(self):
        rate = slots.get_rate(self.optimizer)
        return None if rate is None or callable(rate) else self.read(rate)

    def write_rate(self, rate):
        self.optimizer.learning_rate = float(rate)

    # -- checkpoints -------------------------------------------------------------------------------

    def start_training(self):
        self.check_checkpoint()

    def check_checkpoint(self):
        """Raise a StateError if a checkpoint has an open window, and there are no accumulators.

        TensorFlow keeps values without a variable, in case the variable is created later.
        """
        accumulation = self.optimizer._accumulation
        is_eager = tf.compat.v1.executing_eagerly_outside_functions()
        if not (is_eager and accumulation.state.is_built):
            return
        position = 0
        for values in self._list_positions().values():
            with contextlib.suppress(tf.errors.NotFoundError):  # the file is gone
                (position,) = map(int, values[-1].value_tensors().values())
        if position:
            raise StateError(
                f"The checkpoint is {position} micro-batches into a window, and "
                f"{accumulation.state.variables.owner}, has no accumulators. Restore it with "
                "accum_iters > 1, or call `apply_partial_window()` before you save it."
            )
        self.forget_checkpoints()

    def forget_checkpoints(self):
        """Without accumulators, drop a checkpoint's position: a newer state takes its place."""
        for name in self._list_positions():
            del self._waiting_values()[name]

    def _list_positions(self):
        """Return the values of `window_position` for which there are no accumulators: 0 or 1."""
        if self.optimizer._accumulation.options.accumulates:
            return {}
        return {
            name: values
            for name, values in self._waiting_values().items()
            for attribute in values[-1].object_proto.attributes
            if attribute.full_name.split("/")[-1] == "window_position"
        }

    @abc.abstractmethod
    def _waiting_values(self):
        """Return a checkpoint's values without a variable, a dictionary of lists."""

    # -- a window's variables ----------------------------------------------------------------------

    @abc.abstractmethod
    def add_variable(self, name, value, dtype, shape):
        """Create an optimizer variable on every replica."""

    def add_counter(self, name, value, shape=()):
        return self.add_variable(name, value, tf.int64, shape)

    def add_scalar(self, name, value):
        return self.add_variable(name, value, self._scalar_dtype(), ())

    @staticmethod
    def _scalar_dtype():
        return tf.as_dtype(parts.scalar_dtype(keras.backend.floatx()))

    def _variable_scope(self):
        """Scope for creating variables."""
        strategy = self.optimizer._distribution_strategy
        if strategy is None or tf.distribute.has_strategy():
            return contextlib.nullcontext()
        return strategy.scope()


class LegacyStore(TfKerasStore):
    """A legacy optimizer's variables."""

    def rate_in_use(self):
        optimizer = self.optimizer
        is_nadam = self.stock_class is legacy.Nadam  # its `decay` is for the momentum
        rate = optimizer.learning_rate if is_nadam else optimizer._decayed_lr(self._scalar_dtype())
        return float(self.read(rate))

    def _waiting_values(self):
        return self.optimizer._deferred_dependencies

    def add_sum(self, variable):
        return self.optimizer.add_slot(variable, SUMS)

    def add_variable(self, name, value, dtype, shape):
        arguments = {"shape": shape, "dtype": dtype, "trainable": False}
        arguments["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        with self._variable_scope():
            initializer = keras.initializers.Constant(value)
            return self.optimizer.add_weight(name, initializer=initializer, **arguments)


class NewStyleStore(TfKerasStore):
    """An optimizer's variables in the newer style."""

    def rate_in_use(self):
        rate = slots.get_rate(self.optimizer)
        if not isinstance(rate, tf.Variable):
            rate = rate(tf.constant(self.optimizer.completed_updates, tf.int64))
        return float(self.read(rate))

    def _waiting_values(self):
        return self.optimizer._variables._deferred_dependencies

    def add_sum(self, variable):
        with self._variable_scope(), sum_scope(variable):
            return self.optimizer.add_variable_from_reference(variable, SUMS)

    def add_variable(self, name, value, dtype, shape):
        with self._variable_scope():
            initializer = keras.initializers.Constant(value)
            return self.optimizer.add_variable(shape, dtype, initializer, name=name)


def get_dtype(variable):
    """Return a variable's own dtype, not the dtype that mixed precision casts to."""
    # Only mixed precision variables have a `true_dtype`.
    return getattr(variable, "true_dtype", variable.dtype).base_dtype


def sum_scope(variable):
    """Scope for creating a variable's accumulator in the dtype of its sum, not Keras's."""
    own = get_dtype(variable).name
    dtype = tf.as_dtype(parts.sum_dtype(own))

    def creator(next_creator, **arguments):
        arguments.update(initial_value=lambda: tf.zeros(variable.shape, dtype), dtype=dtype)
        return next_creator(**arguments)

    is_other = dtype.name != own
    return tf.variable_creator_scope(creator) if is_other else contextlib.nullcontext()
