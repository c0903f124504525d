"""The TensorFlow backend: replicas, sparse gradients, selected assignments and fused kernels.

By default, gradients are summed over the replicas on every micro-batch. Accumulators, slots and
counters are therefore the same on all replicas, and are mirrored like any other variable.
"""

import contextlib

import keras
import tensorflow as tf
from keras import ops
from tensorflow.python.ops import control_flow_util

from keras_accum import gates, kernels, rules, train_functions
from keras_accum.keras3 import backend
from keras_accum.keras3.selection import SelectAfter, SelectWrites
from keras_accum.ranges import is_of_keras
from keras_accum.tensorflow_port import TensorFlowPort

Picker = train_functions.Picker
as_written = kernels.as_written


def _native(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable


class Port(TensorFlowPort, backend.Port):
    """Keras 3 on TensorFlow."""

    can_reduce_late = True
    steps_return_state = False
    name_of = backend.Port.name_of
    totals = backend.Port.totals
    add_to = TensorFlowPort.add_to

    def key(self, variable):
        return self.optimizer._var_key(variable)  # the same for a variable and its copies

    # -- where variables are made and written ------------------------------------------------------

    def variable_scope(self):
        return self.strategy.scope()

    def eagerly(self):
        return tf.init_scope()

    def build_scope(self, variables):
        # A stock optimizer may write in `build`. If the weights have their values already, the
        # write happens now and not in each run of the function that is being traced.
        with tf.init_scope():
            are_there = all(bool(_native(variable).is_initialized()) for variable in variables)
        return tf.init_scope() if are_there else contextlib.nullcontext()

    def can_be_written(self, tensor):
        return isinstance(tensor, tf.Variable)

    was_written = can_be_written

    def value(self, variable):
        return tf.convert_to_tensor(_native(variable))

    def copy(self, variable):
        return tf.identity(self.value(variable))

    # -- replicas ----------------------------------------------------------------------------------

    def reduce(self, tensors, variables):
        if self.replicas() == 1:
            return tensors
        pairs = list(zip(tensors, map(_native, variables)))
        pairs = self.stock._all_reduce_sum_gradients(self.optimizer, pairs)
        return [gradient for gradient, _ in pairs]

    def on(self, variable, function, *tensors):
        self.strategy.extended.update(
            _native(variable),
            lambda target, *values: function(variable, target, *values),
            args=tensors,
            group=False,
        )

    # -- writes ------------------------------------------------------------------------------------

    def selection_of(self, switch, own):
        # Only Keras's own optimizers are known to write through `assign`.
        select = SelectWrites if is_of_keras(self.stock) else SelectAfter
        return select(self, switch, own)

    def update(self, step, averages, variables, switches):
        # A step that finds no more data must not write: see `kernels.after`.
        is_certain = gates.is_certain(step.switch)
        with kernels.after(averages) if is_certain else contextlib.nullcontext():
            super().update(step, averages, variables, switches)

    def rest(self, total, hold, written):
        return self.times(total, hold)


class Hooks(backend.Hooks):
    """What the code of a stock optimizer calls."""

    def _all_reduce_sum_gradients(self, grads_and_vars):
        if self._accumulation.port.selection is not None:
            return grads_and_vars  # the average already comes from the sums over all replicas
        return super()._all_reduce_sum_gradients(grads_and_vars)

    @property
    def _writes(self):
        return self._accumulation.port.selects_writes

    # Stock optimizers write native variables, which a StatelessScope doesn't see, by these three.

    def assign(self, variable, value):
        if self._writes:
            value = self._writes.selected(value, self._accumulation.port.value(variable))
        super().assign(variable, value)

    def assign_add(self, variable, value):
        super().assign_add(variable, self._selected_change(variable, value))

    def assign_sub(self, variable, value):
        super().assign_sub(variable, self._selected_change(variable, value))

    def _selected_change(self, variable, value):
        if self._writes is None or self._writes.lets_all_through:
            return value
        switch = tf.cast(self._writes.switch, variable.dtype)
        return kernels.gate(tf.cast(value, variable.dtype), switch)

    @property
    def weight_decay(self):
        writes, value = self._writes, self._weight_decay
        is_all = writes is None or writes.lets_all_through or value is None
        if is_all or not self._decays_past_assign:
            return value
        # float32, as in Keras's own code, where `tf.cast` converts the number first.
        return tf.convert_to_tensor(value) * tf.cast(writes.switch, "float32")

    @property
    def _decays_past_assign(self):
        """True if weights decay by Keras's own code, whose writes no selection sees."""
        of_keras = keras.optimizers.Optimizer._apply_weight_decay
        return self._stock_class._apply_weight_decay is of_keras

    @weight_decay.setter
    def weight_decay(self, weight_decay):
        self._weight_decay = weight_decay

    def _apply_weight_decay(self, variables):
        writes = self._writes
        with_others, own = [], []
        for variable in variables:
            is_own = writes and self._accumulation.port.index(variable) in writes.own
            (own if is_own else with_others).append(variable)
        super()._apply_weight_decay(with_others)
        for variable in own:
            with writes.of(variable):
                super()._apply_weight_decay([variable])

    def _step_of_stock(self, gradient, variable, learning_rate):
        rule = self._rule_with_kernel(variable.dtype)
        if rule is None:
            super()._step_of_stock(gradient, variable, learning_rate)
            return
        port = self._accumulation.port
        slots = [port.slots[name, port.key(variable)] for name in rule.slots]
        scalars = self._kernel_scalars(rule, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        kernels.apply_rule(rule, scalars, gradient, variable, list(map(_native, slots)))

    def _kernel_scalars(self, rule, dtype):
        """Return a kernel's scalars, computed once per data type and switch."""
        writes = self._writes
        key = dtype, id(writes.switch)
        if key not in writes.kept:
            coefficients = rule.coefficients(
                ops,
                ops.cast(writes.switch, dtype),
                ops.cast(self.learning_rate, dtype),
                ops.cast(self._iterations + 1, dtype),
                **{name: getattr(self, name) for name in rule.hyperparameters},
            )
            if isinstance(rule, rules.Adam):
                betas = self.beta_1, self.beta_2
                coefficients = kernels.without_rounded_betas(coefficients, *betas, dtype)
            writes.kept[key] = kernels.kernel_scalars(rule, coefficients)
        return writes.kept[key]

    def _rule_with_kernel(self, dtype):
        """Return the rule if TensorFlow has a fused kernel that is cheaper than Keras's code.

        Return None under XLA, which fuses Keras's code by itself, and better. Return None for half
        precision, too, whose 1 - beta_2 the kernel rounds to 0.
        """
        name = self._stock_class.__name__
        if not is_of_keras(self._stock_class) or _is_compiled_by_xla():
            return None
        if dtype not in ("float32", "float64"):
            return None
        if name == "SGD":
            return rules.SGD(momentum=self.momentum != 0, nesterov=self.nesterov)
        if name in ("Adam", "AdamW") and not self.amsgrad:
            return rules.Adam()
        return None


def _is_compiled_by_xla():
    graph = tf.compat.v1.get_default_graph() if tf.inside_function() else None
    return graph is not None and control_flow_util.GraphOrParentsInXlaContext(graph)
