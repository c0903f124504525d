"""TensorFlow: replicas, sparse gradients and fused kernels.

Replicas are in step: gradients are summed over them on every micro-batch, so accumulators, slots
and counters are the same on all of them and are mirrored like any other variable.
"""

import keras
import tensorflow as tf

from keras_accum import kernels
from keras_accum.callbacks import python_gate
from keras_accum.keras3 import backend_jax

Picker = python_gate.Picker


def _native(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable


class Backend(backend_jax.Backend):
    """Comes before a Keras 3 optimizer class."""

    _gate = staticmethod(kernels.gate)
    _kernel_scalars = staticmethod(kernels.kernel_scalars)
    _all_finite = staticmethod(kernels.all_finite)
    _dense = staticmethod(tf.convert_to_tensor)
    _replica = staticmethod(kernels.replica)
    _is_traced = staticmethod(tf.inside_function)
    _can_reduce_late = True
    _steps_return_state = False

    def _variable_scope(self):
        return self._distribution_strategy.scope()

    def _sum_scope(self):
        if not self._reduces_late:
            return super()._sum_scope()
        return kernels.sums_of_replicas(self._distribution_strategy)

    def _eagerly(self):
        return tf.init_scope()

    def _in_replicas(self, function, *arguments):
        kernels.in_replicas(self._distribution_strategy, lambda: function(*arguments))

    def _sum_over_replicas(self, grads, variables):
        if self._replicas() == 1:
            return grads
        pairs = self._all_reduce_sum_gradients(list(zip(grads, map(_native, variables))))
        return [gradient for gradient, _ in pairs]

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

    def _if(self, switch, update, accumulate, *tensors):
        def branch(strategy, switch, *tensors):
            kernels.branch(strategy, switch, update, accumulate, *tensors)

        tf.__internal__.distribute.interim.maybe_merge_call(
            branch, self._distribution_strategy, switch, *tensors
        )

    def _add(self, accumulator, target, gradient):
        kernels.accumulate(target, gradient)

    def _value(self, variable):
        return tf.convert_to_tensor(_native(variable))

    def _decays(self, variable):
        # By the native name, as the stock optimizer on TensorFlow has it.
        return self._use_weight_decay(_native(variable))

    def _rest(self, total, hold, weights):
        return self._gate(total, hold)

    def _sum(self, accumulator, gradient):
        return kernels.add(self._value(accumulator), gradient)

    def _apply_rule(self, rule, scalars, gradient, target, slots):
        kernels.apply_rule(rule, scalars, gradient, target, list(map(_native, slots)))
