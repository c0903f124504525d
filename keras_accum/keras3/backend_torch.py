"""The PyTorch backend, which runs eagerly, so that Python knows the switch.

A micro-batch inside a window is one fused addition. A micro-batch that closes a window runs the
stock optimizer on the average. Under `torch.compile`, the switch is a tensor, as on the other
backends.
"""

import keras
import numpy as np
import torch
from keras import ops

from keras_accum import window
from keras_accum.keras3 import backend_jax
from keras_accum.keras3.gates import SelectAfter

Picker = None  # an eager train step needs no second version


def _is_compiling():
    return torch.compiler.is_compiling()


class Backend(backend_jax.Backend):
    """A base class that comes before a Keras 3 optimizer class."""

    _steps_return_state = False

    def _is_traced(self):
        return _is_compiling()

    def _counter_scope(self):
        # Counters stay on the CPU, so that reading a counter doesn't wait for the device.
        return keras.device("cpu")

    @staticmethod
    def _can_be_written(tensor):
        return True

    @staticmethod
    def _was_written(tensor):
        return tensor._version > 0  # a result that an update keeps for itself was written once

    # -- values that Python knows ----------------------------------------------------------------

    @property
    def _counts_with(self):
        return ops if _is_compiling() else np

    def _count_of_one(self):
        return super()._count_of_one() if _is_compiling() else 1

    def _count_value(self, counter):
        value = super()._count_value(counter)
        return value if _is_compiling() else value.cpu().numpy()[()]

    def _drop_nonfinite(self, grads):
        if _is_compiling() or not self.skip_nonfinite:
            return super()._drop_nonfinite(grads)
        counted = int(self._all_finite(grads))
        return counted, grads if counted else [torch.zeros_like(g) for g in grads]

    def _is_due(self, step):
        return None if _is_compiling() else bool(step.switch)

    def _conditional(self, switch, update, accumulate, *tensors):
        raise ValueError(
            "gate='conditional' can't be used in torch.compile: a conditional doesn't run there. "
            f"Construct {type(self).__name__} with gate='select', the default; both gates have "
            "the same state."
        )

    def _copy_of_value(self, variable):
        """Return a copy of a variable's value, which later writes don't change."""
        return variable.value.clone()

    def _gate_for(self, step, own):
        return SelectAfter(self, step, own)  # the fused updates write past `assign`

    # -- fused operations ------------------------------------------------------------------------

    @torch.no_grad()
    def _take_micro_batch(self, grads, variables, absent):
        super()._take_micro_batch(grads, variables, absent)

    def _add_all(self, grads, variables):
        summed, summands = [], []
        for gradient, variable in zip(grads, variables):
            accumulator = self._sum_of(variable).value
            if self._overwrite_variable_with_gradient(variable):
                accumulator.copy_(torch.maximum(accumulator, gradient))
            else:
                summed.append(accumulator)
                summands.append(gradient.to(accumulator.dtype))
        if summed:
            torch._foreach_add_(summed, summands)

    def _update_from(self, grads, step, variables, absent):
        if _is_compiling() or not self._accumulates:
            super()._update_from(grads, step, variables, absent)
            return
        self._add_all(grads, variables)
        known = self._trainable_variables
        absent, frozen = self._apart_from_frozen(absent, known)
        variables = [*variables, *(known[i] for i in absent if step.covered[i])]
        sums = [self._sum_of(v).value for v in variables]
        self._update_through_gate(step, sums, variables, frozen=frozen)

    def _window_averages(self, step, steps, totals, variables):
        if _is_compiling() or not self._accumulates:
            return super()._window_averages(step, steps, totals, variables)
        # In place, because the sums are zeroed afterwards.
        overwritten = [self._overwrite_variable_with_gradient(v) for v in variables]
        summed = [total for total, skip in zip(totals, overwritten) if not skip]
        if summed:
            scale = window.scale(np, step, self.reduction, np.float64)
            torch._foreach_mul_(summed, float(scale))
        return [total.clone() if skip else total for total, skip in zip(totals, overwritten)]

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # The fused updates need gradients of the variables' data types.
        pairs = zip(grads, trainable_variables)
        grads = [gradient.to(variable.value.dtype) for gradient, variable in pairs]
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _keep_sums(self, hold, totals, variables):
        if _is_compiling():
            super()._keep_sums(hold, totals, variables)
        else:
            torch._foreach_zero_([self._sum_of(v).value for v in variables])

    def _remainder(self, total, hold, weights):
        return self._times_factor(total, hold)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        # The fused additions write in place, and the caller's tensors must not change.
        def copies(tensors):
            return [keras.ops.convert_to_tensor(tensor).clone() for tensor in tensors]

        return super().stateless_apply(
            copies(optimizer_variables), grads, copies(trainable_variables)
        )
