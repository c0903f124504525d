"""What both styles of optimizers of this Keras do for the engine.

After `tf.compat.v1.disable_eager_execution()`, TensorFlow orders no operations by itself, and runs
only those on which a result depends. The port therefore collects the operations of a train step.
"""

import abc
import collections
import contextlib

import tensorflow as tf

from keras_accum import kernels
from keras_accum.tf_keras import models
from keras_accum.tf_keras.library import keras
from keras_accum.tf_keras.state import StatePort

NO_TRAIN_FUNCTION = (
    "{} needs the train function of TensorFlow 2, which models don't have after "
    "tf.compat.v1.disable_eager_execution(): leave that call out."
)

_LATE = (
    "all_reduce='per_window' needs the gradients before they are summed over replicas: leave {}. A "
    "LossScaleOptimizer needs the sums of each micro-batch: use all_reduce='per_micro_batch'."
)
_SUMMED = (
    "reduction='weighted', and a LossScaleOptimizer around an optimizer with accum_iters > 1, need "
    "the gradients before they are summed over replicas: leave {}. Otherwise a micro-batch would "
    "lack its weight, or a skipped micro-batch would count as an update."
)
_GRAPH_MODE = (
    "`apply_partial_window` on replicas needs the eager execution of TensorFlow 2: leave "
    "tf.compat.v1.disable_eager_execution() out. Received: {}"
)


class Port(StatePort):
    """Keras 2 on TensorFlow 2. A subclass is for one style of optimizers.

    to_sum: the argument of `apply_gradients` for gradients that aren't summed over replicas yet.
    """

    to_sum = None

    def __init__(self, optimizer, given):
        super().__init__(optimizer, given)
        self._operations = collections.defaultdict(list)  # by replica
        # The replicas whose gradients are summed and not applied yet.
        self._summed = set()
        self._closings = {}

    def are_frozen(self, variables):
        return models.are_frozen(self.optimizer, variables)

    # -- the variables of a window -----------------------------------------------------------------

    @property
    def scalar_dtype(self):
        return tf.float64 if keras.backend.floatx() == "float64" else tf.float32

    def variable_scope(self):
        """The scope for making variables."""
        if self.strategy is None or tf.distribute.has_strategy():
            return contextlib.nullcontext()
        return self.strategy.scope()

    def add_norm(self, name):
        with tf.init_scope(), self.variable_scope():
            return tf.Variable(
                -1.0,
                trainable=False,
                name=name,
                dtype=self.scalar_dtype,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def sum_scope_of(self, variable):
        """The scope for making the gradient sum of a variable, whatever dtype Keras asks for."""
        # A sum of many half precision gradients overflows or stalls in half precision.
        dtype = getattr(variable, "true_dtype", variable.dtype).base_dtype
        is_half = dtype in (tf.float16, tf.bfloat16)
        return kernels.variables_in_float32() if is_half else contextlib.nullcontext()

    # -- a train step ------------------------------------------------------------------------------

    def apply(self, pairs, is_summed):
        """Take a micro-batch, and return its last operation; None in eager mode."""
        self._check_summed(is_summed)
        gradients, variables = map(list, zip(*pairs))
        if not is_summed:
            gradients, weight = self._sums(gradients, variables)
        elif self.accumulation.options.weighs:  # see `sum_in_advance`
            weight, _ = gradients.pop(), variables.pop()
        else:
            weight = None
        with self._collecting() as operations:
            self.accumulation.take(gradients, weight, variables)
        return operations[-1] if operations else None

    def _check_summed(self, is_summed):
        """Raise a ValueError if gradients are already summed over replicas but must not be."""
        options, replica = self.accumulation.options, self.replica()
        was_summed_here = replica in self._summed
        self._summed.discard(replica)
        if is_summed and options.reduces_late:
            raise ValueError(_LATE.format(self.to_sum))
        if is_summed and not was_summed_here and (self._is_scaled or options.weighs):
            raise ValueError(_SUMMED.format(self.to_sum))

    @property
    def _is_scaled(self):
        """True if a LossScaleOptimizer skips micro-batches that a window would count."""
        is_inner = getattr(self.optimizer, "_is_wrapped_by_loss_scale_optimizer", False)
        return is_inner and self.accumulation.options.accumulates

    def _sums(self, gradients, variables):
        accumulation = self.accumulation
        if accumulation.options.weighs and not accumulation.weights:
            if not tf.compat.v1.executing_eagerly_outside_functions():
                raise ValueError(NO_TRAIN_FUNCTION.format("reduction='weighted' in `fit`"))
        return accumulation.reduce(gradients, variables)

    def sum_in_advance(self, pairs):
        """Return pairs whose gradients are summed over replicas, to hand to `apply_gradients`.

        The weight of the micro-batch, if any, is the last pair. A LossScaleOptimizer calls this on
        every micro-batch. If it skips a micro-batch, it adds 1 to `iterations` and applies nothing.
        `unapplied` becomes 1 here, and 0 when the micro-batch is applied. A 1 at the next call is
        therefore the 1 that was added.
        """
        self._summed.add(self.replica())
        variables = [variable for _, variable in pairs]
        present = [pair for pair in pairs if pair[0] is not None]
        sums, weight = self._sums(*map(list, zip(*present)))
        if self._is_scaled:
            sums = self._after_taking_back(sums)
        sums = iter(sums)
        gradients = [None if gradient is None else next(sums) for gradient, _ in pairs]
        if weight is not None:
            gradients.append(weight)
            variables.append(self.accumulation.window.weight)
        return list(zip(gradients, variables))

    def _after_taking_back(self, sums):
        """Return the sums, after what a LossScaleOptimizer added to `iterations` was undone."""
        unapplied = self.accumulation.window.named["unapplied"]
        with kernels.after(sums):
            taken_back = self.updates.assign_sub(tf.convert_to_tensor(unapplied))
        with tf.control_dependencies([taken_back]):
            noted = unapplied.assign(1)
        with tf.control_dependencies([noted]):
            return list(map(tf.identity, sums))

    def count_updates(self, switch):
        def count(variable, target, switch):
            return target.assign_add(tf.cast(switch, target.dtype))

        self.on(self.updates, count, switch)

    # -- replicas and control flow -----------------------------------------------------------------

    def reduce(self, tensors, variables):
        return [total for total, _ in self.sum_pairs(list(zip(tensors, variables)))]

    @abc.abstractmethod
    def sum_pairs(self, pairs):
        """Return pairs of gradients and variables, summed over replicas by the stock optimizer."""

    @contextlib.contextmanager
    def _collecting(self):
        """A scope with the list of the operations that are made in it, which eager mode has not."""
        replica = self.replica()
        before, self._operations[replica] = self._operations[replica], []
        try:
            yield self._operations[replica]
        finally:
            self._operations[replica] = before

    def _grouped(self, function):
        """Return a function that returns the operations of `function` as one operation."""

        def call(*tensors):
            with self._collecting() as operations:
                self._collect(function(*tensors))
                return tf.group(*operations)

        return call

    def _collect(self, done):
        operations = [operation for operation in tf.nest.flatten(done) if operation is not None]
        if not tf.executing_eagerly():
            self._operations[self.replica()] += operations
        return operations

    def across(self, function, *tensors):
        return self._collect(super().across(self._grouped(function), *tensors))

    def on(self, variable, function, *tensors):
        return self._collect(super().on(variable, function, *tensors))

    def branch(self, step, gradients, update, add):
        super().branch(step, gradients, self._grouped(update), self._grouped(add))

    def after_writes(self):
        return tf.control_dependencies(self._operations[self.replica()])

    def between_steps(self, function, *arguments):
        is_eager = tf.compat.v1.executing_eagerly_outside_functions()
        if not is_eager and self.strategy is not None:
            raise ValueError(_GRAPH_MODE.format(type(self.strategy).__name__))
        # Undo what a LossScaleOptimizer has added.
        self.write(self.updates, self.optimizer.completed_updates)
        self.write(self.accumulation.window.named["unapplied"], 0)
        if is_eager:
            super().between_steps(self._grouped(function), *arguments)
            return
        key = tuple(variable.ref() for variable in tf.nest.flatten(arguments))
        if key not in self._closings:  # kept, because a graph only grows
            with tf.control_dependencies([self._grouped(function)(*arguments)]):
                self._closings[key] = tf.ones([])
        keras.backend.get_value(self._closings[key])
