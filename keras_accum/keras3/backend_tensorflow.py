"""TensorFlow: replicas, sparse gradients, selected assignments and fused kernels.

By default, gradients are summed over the replicas on every micro-batch. Accumulators, slots and
counters are therefore the same on all replicas, and are mirrored like any other variable.
"""

import contextlib

import keras
import tensorflow as tf
from keras import ops
from tensorflow.python.ops import control_flow_util

from keras_accum import kernels, rules, train_functions
from keras_accum.keras3 import backend_jax
from keras_accum.keras3.gates import SelectAfter, SelectWrites
from keras_accum.ranges import is_of_keras

Picker = train_functions.Picker


def _native(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable


class Backend(backend_jax.Backend):
    """A base class that comes before a Keras 3 optimizer class."""

    _times_factor = staticmethod(kernels.gate)
    _all_finite = staticmethod(kernels.all_finite)
    _dense = staticmethod(tf.convert_to_tensor)
    _replica = staticmethod(kernels.replica)
    _is_traced = staticmethod(tf.inside_function)
    _can_reduce_late = True
    _steps_return_state = False

    # -- where variables are made and written --------------------------------------------------

    def _variable_scope(self):
        return self._distribution_strategy.scope()

    def _sum_scope(self):
        if not self._reduces_late:
            return super()._sum_scope()
        return kernels.sums_of_replicas(self._distribution_strategy)

    def _eagerly(self):
        return tf.init_scope()

    def _build_scope(self, variables):
        # A stock optimizer may write in `build`. If the weights have their values already, the
        # write happens now and not in each run of the function that is being traced.
        with tf.init_scope():
            are_there = all(bool(_native(variable).is_initialized()) for variable in variables)
        return tf.init_scope() if are_there else contextlib.nullcontext()

    @staticmethod
    def _can_be_written(tensor):
        return isinstance(tensor, tf.Variable)

    _was_written = _can_be_written

    # -- replicas --------------------------------------------------------------------------------

    def _in_replicas(self, function, *arguments):
        kernels.in_replicas(self._distribution_strategy, lambda: function(*arguments))

    def _sum_over_replicas(self, grads, variables):
        if self._replicas() == 1:
            return grads
        pairs = super()._all_reduce_sum_gradients(list(zip(grads, map(_native, variables))))
        return [gradient for gradient, _ in pairs]

    def _all_reduce_sum_gradients(self, grads_and_vars):
        # The average already comes from the sums over all replicas.
        return (
            grads_and_vars if self._open_gate else super()._all_reduce_sum_gradients(grads_and_vars)
        )

    def _replicas(self):
        return tf.distribute.get_strategy().num_replicas_in_sync

    def _across_replicas(self, function, *tensors):
        tf.__internal__.distribute.interim.maybe_merge_call(
            lambda strategy, *values: function(*values), self._distribution_strategy, *tensors
        )

    def _on_variable(self, variable, function, *tensors):
        self._distribution_strategy.extended.update(
            _native(variable),
            lambda target, *values: function(variable, target, *values),
            args=tensors,
            group=False,
        )

    # -- gates -----------------------------------------------------------------------------------

    def _gate_for(self, step, own):
        # Only Keras's own optimizers are known to write through `assign`.
        gate = SelectWrites if is_of_keras(self._stock_class) else SelectAfter
        return gate(self, step, own)

    def _conditional(self, switch, update, accumulate, *tensors):
        def across(strategy, switch, *tensors):
            kernels.branch(strategy, switch, update, accumulate, *tensors)

        tf.__internal__.distribute.interim.maybe_merge_call(
            across, self._distribution_strategy, switch, *tensors
        )

    def _copy_of_value(self, variable):
        return tf.identity(self._value_of(variable))

    # Stock optimizers write native variables, which a StatelessScope doesn't see, by these three.

    def assign(self, variable, value):
        if self._writes:
            value = self._writes.selected(value, self._value_of(variable))
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
        gate, value = self._writes, self._weight_decay
        if gate is None or gate.lets_all_through or value is None or not self._decays_past_assign:
            return value
        # float32, as in Keras's own code, where `tf.cast` converts the number first.
        return tf.convert_to_tensor(value) * tf.cast(gate.switch, "float32")

    @property
    def _decays_past_assign(self):
        """True if weights decay by Keras's own code, whose writes no gate sees."""
        of_keras = keras.optimizers.Optimizer._apply_weight_decay
        return self._stock_class._apply_weight_decay is of_keras

    @weight_decay.setter
    def weight_decay(self, weight_decay):
        self._weight_decay = weight_decay

    def _apply_weight_decay(self, variables):
        gate = self._writes
        with_others, own = [], []
        for variable in variables:
            is_own = gate and self._get_variable_index(variable) in gate.own
            (own if is_own else with_others).append(variable)
        super()._apply_weight_decay(with_others)
        for variable in own:
            with gate.of(variable):
                super()._apply_weight_decay([variable])

    def _step_of_stock(self, gradient, variable, learning_rate):
        rule = self._rule_with_kernel(variable.dtype)
        if rule is None:
            super()._step_of_stock(gradient, variable, learning_rate)
            return
        slots = [self._slots_by_name[n, self._var_key(variable)] for n in rule.slots]
        scalars = self._kernel_scalars(rule, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        kernels.apply_rule(rule, scalars, gradient, variable, list(map(_native, slots)))

    def _kernel_scalars(self, rule, dtype):
        """Return a kernel's scalars, computed once per data type and switch."""
        gate = self._writes
        key = dtype, id(gate.switch)
        if key not in gate.kept:
            coefficients = rule.coefficients(
                ops,
                ops.cast(gate.switch, dtype),
                ops.cast(self.learning_rate, dtype),
                ops.cast(self._iterations + 1, dtype),
                **{name: getattr(self, name) for name in rule.hyperparameters},
            )
            if isinstance(rule, rules.Adam):
                betas = self.beta_1, self.beta_2
                coefficients = kernels.without_rounded_betas(coefficients, *betas, dtype)
            gate.kept[key] = kernels.kernel_scalars(rule, coefficients)
        return gate.kept[key]

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

    # -- a step that finds no more data: see `kernels.after` -------------------------------------

    def _counted_after(self, grads):
        with kernels.after(grads):  # all counters and switches depend on this number
            return super()._counted_after(grads)

    def _update_from(self, grads, step, variables, absent):
        with kernels.after(grads) if self._decided else contextlib.nullcontext():
            super()._update_from(grads, step, variables, absent)

    # -- sums ------------------------------------------------------------------------------------

    def _add_gradient(self, accumulator, target, gradient):
        kernels.accumulate(target, gradient)

    def _value_of(self, variable):
        return tf.convert_to_tensor(_native(variable))

    def _remainder(self, total, hold, weights):
        return self._times_factor(total, hold)

    def _plus(self, accumulator, gradient):
        return kernels.add(self._value_of(accumulator), gradient)


def _is_compiled_by_xla():
    graph = tf.compat.v1.get_default_graph() if tf.inside_function() else None
    return graph is not None and control_flow_util.GraphOrParentsInXlaContext(graph)
