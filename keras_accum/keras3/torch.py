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
from keras_accum.callbacks.in_backward.torch import IN_SUM
from keras_accum.keras3 import hooks, port


def _is_compiling():
    return torch.compiler.is_compiling()


class Port(port.Port):
    """Keras 3 on PyTorch."""

    steps_return_state = False
    in_backward = None  # the scope in which `backward` adds gradients to their sums, if any

    def is_traced(self):
        return _is_compiling()

    def add_counter(self, name, value, shape=()):
        # Counters stay on the CPU, so that reading a counter doesn't wait for the device.
        with keras.device("cpu"):
            return super().add_counter(name, value, shape)

    # -- values that Python knows ------------------------------------------------------------------

    @property
    def counts_with(self):
        return ops if _is_compiling() else np

    def one_after(self, gradients):
        return super().one_after(gradients) if _is_compiling() else 1

    def count_if(self, condition):
        return super().count_if(condition) if _is_compiling() else int(bool(condition))

    def count_of(self, counter):
        value = self.value(counter)
        return value if _is_compiling() else value.cpu().numpy()[()]

    def all_finite(self, gradients):
        finite = super().all_finite(gradients)
        return finite if _is_compiling() else int(finite)

    def kept(self, gradients, counted):
        if _is_compiling():
            return super().kept(gradients, counted)
        return gradients if counted else [torch.zeros_like(g) for g in gradients]

    def known(self, step):
        return None if _is_compiling() else bool(step.switch)

    def copy(self, variable):
        return variable.value.clone()

    # -- fused operations --------------------------------------------------------------------------

    def add(self, sums, gradients, variables):
        summed, summands = [], []
        for total, gradient, variable in zip(sums, gradients, variables):
            if gradient is IN_SUM:
                continue
            if self.overwrites(variable):
                total.value.copy_(torch.maximum(total.value, gradient))
            else:
                summed.append(total.value)
                summands.append(gradient.to(total.value.dtype))
        if summed:
            torch._foreach_add_(summed, summands)

    def totals(self, step, sums, gradients, variables):
        if _is_compiling():
            return super().totals(step, sums, gradients, variables)
        self.add(sums, gradients, variables)
        return [total.value for total in sums]

    def steps_of(self, step, absent):
        if _is_compiling():
            return super().steps_of(step, absent)
        return {index: step for index in absent if step.covered[index]}

    def averages(self, totals, variables, steps):
        if _is_compiling() or self.accumulation.window is None:
            return super().averages(totals, variables, steps)
        # In place, because the sums are zeroed afterwards.
        overwritten = list(map(self.overwrites, variables))
        summed = [total for total, skip in zip(totals, overwritten) if not skip]
        if summed:
            reduction = self.accumulation.options.reduction
            torch._foreach_mul_(summed, float(window.scale(np, steps[0], reduction, np.float64)))
        return [total.clone() if skip else total for total, skip in zip(totals, overwritten)]

    def keep(self, step, totals, variables):
        if _is_compiling():
            super().keep(step, totals, variables)
        else:
            torch._foreach_zero_(totals)

    def rest(self, total, hold, written):
        return self.times(total, hold)

    # -- control flow ------------------------------------------------------------------------------

    def branch(self, step, gradients, update, add):
        raise ValueError(
            "gate='conditional' can't be used in torch.compile: a conditional doesn't run there. "
            f"Construct {type(self.optimizer).__name__} with gate='select', the default; both "
            "gates have the same state."
        )

    def taking(self, gradients, variables):
        scope = self.in_backward
        taking = super().taking if scope is None else scope.taking
        return taking(gradients, variables)

    def check_whole(self):
        if self.in_backward is not None:
            self.in_backward.check_whole()


class Accumulating(hooks.Hooks):
    """What Keras calls of an optimizer on PyTorch."""

    port_class = Port

    @torch.no_grad()
    def apply(self, grads, trainable_variables=None):
        return super().apply(grads, trainable_variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if self._accumulation.port.selection is not None:
            # The fused updates need gradients of the variables' data types.
            pairs = zip(grads, trainable_variables)
            grads = [gradient.to(variable.value.dtype) for gradient, variable in pairs]
        scope, groups = self._accumulation.port.in_backward, [range(len(grads))]
        if scope is not None:
            groups = scope.groups(trainable_variables)
        for group in groups:
            parts = [[tensors[i] for i in group] for tensors in (grads, trainable_variables)]
            super()._backend_update_step(*parts, learning_rate)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        # The fused additions write in place, and the caller's tensors must not change.
        def copies(tensors):
            return [ops.convert_to_tensor(tensor).clone() for tensor in tensors]

        return super().stateless_apply(
            copies(optimizer_variables), grads, copies(trainable_variables)
        )
