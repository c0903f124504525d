"""PyTorch runs eagerly, so the switch is known on the host.

A micro-batch inside a window is one fused addition, and one that closes it is the stock optimizer
on the average. Only under `torch.compile` is the switch a tensor, as on the other backends.
"""

import keras
import numpy as np
import torch

from keras_accum import window
from keras_accum.callbacks import monitor
from keras_accum.keras3 import backend_jax

Picker = None  # of an eager train step there needn't be two


class Backend(backend_jax.Backend):
    """Comes before a Keras 3 optimizer class."""

    _steps_return_state = False

    def _runs_eagerly(self):
        return not torch.compiler.is_compiling()

    def _is_traced(self):
        return torch.compiler.is_compiling()

    def _counter_scope(self):
        # Counters stay on the host, where reading one doesn't wait for the device.
        return keras.device("cpu")

    def _if(self, switch, update, accumulate, *tensors):
        if torch.compiler.is_compiling():
            raise ValueError(
                "gate='conditional' can't be used in torch.compile: a conditional doesn't run "
                f"there. Construct {type(self).__name__} with gate='select', the default; the "
                "state of the one fits the other."
            )
        if switch:
            update(*tensors)
        else:
            accumulate(*tensors)

    def _rest(self, total, hold, weights):
        return self._gate(total, hold)

    @torch.no_grad()
    def _take_eagerly(self, grads, variables, absent):
        counted = 1
        grads, weight = self._weighted(grads, variables)
        if self.skip_nonfinite:
            counted = int(self._all_finite(grads))
        self._note_micro_batch(grads, variables, counted)
        step = window.advance(np, *map(int, self._window_state()), counted=counted)
        if absent:
            missing, number = self._missing_gradients.value.numpy(), int(self._iterations.value)
            step = window.miss(np, step, missing, number, absent, counted)
            self._missing_gradients.value.copy_(torch.from_numpy(step.missing))
        if counted:
            self._add_all(grads, variables)
            if self._weighs:
                self._window_weight.value.add_(weight)
        if step.switch:
            if absent:
                variables = [v for v, c in zip(self._trainable_variables, step.covered) if c]
            self._update_by_stock(step, variables)
        self._window_position.value.fill_(int(step.position))
        self._window_length.value.fill_(int(step.length))

    def _add_all(self, grads, variables):
        summed, summands = [], []
        for gradient, variable in zip(grads, variables):
            accumulator = self._accumulator(variable).value
            if self._overwrite_variable_with_gradient(variable):
                accumulator.copy_(torch.maximum(accumulator, gradient))
            else:
                summed.append(accumulator)
                summands.append(gradient.to(accumulator.dtype))
        if summed:
            torch._foreach_add_(summed, summands)

    def _update_by_stock(self, step, variables):
        if self._weighs:
            step = step._replace(divisor=float(self._window_weight.value))
            self._window_weight.value.zero_()
        scale = float(window.scale(np, step, self.reduction, np.float64))
        accumulators = [self._accumulator(v).value for v in variables]
        overwritten = [self._overwrite_variable_with_gradient(v) for v in variables]
        summed = [a for a, skip in zip(accumulators, overwritten) if not skip]
        if summed:
            torch._foreach_mul_(summed, scale)  # in place: they are emptied below
        self._note(monitor.UPDATE_NORM, summed, step.switch)
        averages = [
            a.clone() if skip else a.to(v.value.dtype)
            for a, v, skip in zip(accumulators, variables, overwritten)
        ]
        self._stock_apply(averages, variables)
        torch._foreach_zero_(accumulators)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        # The fused additions write in place, and the caller's tensors are not ours to write.
        def copies(tensors):
            return [keras.ops.convert_to_tensor(tensor).clone() for tensor in tensors]

        return super().stateless_apply(
            copies(optimizer_variables), grads, copies(trainable_variables)
        )
