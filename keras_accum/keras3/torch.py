"""The PyTorch backend. It runs eagerly, so Python knows the switch.

Inside a window a micro-batch is one fused addition; its last one runs the stock optimizer on the
average, computed in a copy. Under `torch.compile`, the switch is a tensor, as on other backends.

Python waits for the device whenever it reads a value from it. Inside a window there is no such
read, except with `skip_nonfinite`, `skip_norm`, a tensor in `close_window`, or a schedule.
"""

import numbers

import keras
import numpy as np
import torch
from keras import ops

from keras_accum.engine.parts import Parts, Replicas
from keras_accum.engine.window import scale
from keras_accum.host import check_members
from keras_accum.keras3 import hooks
from keras_accum.keras3.store import Keras3Store, get_scalar_dtype
from keras_accum.keras3.update import Keras3Update
from keras_accum.keras3.values import Keras3Values

# The member of Keras's own class overridden here, beside those in `hooks`.
OF_KERAS = ("_backend_update_step",)
check_members(keras, keras.optimizers.Optimizer, OF_KERAS)


class TorchValues(Keras3Values):
    """PyTorch's mathematics for the engine."""

    def traces(self):
        # If a compiled function fails, PyTorch reverts Python's side effects.
        return ["torch.compile"] if torch.compiler.is_compiling() else []

    @property
    def counts_with(self):
        return ops if self.is_traced() else np

    def _in_python(self, count):
        return count if self.is_traced() else count.cpu().numpy()[()]

    def read_counter(self, counter):
        return self._in_python(self.value(counter))

    def count_if(self, condition):
        return self._in_python(super().count_if(condition))

    def all_finite(self, gradients):
        return self._in_python(super().all_finite(gradients))

    def cast(self, value, dtype):
        if isinstance(value, numbers.Number):  # filled in by the device: a copy would wait
            return ops.empty((), dtype).fill_(value)
        return super().cast(value, dtype)

    def times(self, value, factor):
        # `ops.where` would copy the 0.0 to the device.
        return torch.where(factor == 0, 0.0, value * factor)

    def zero_unless(self, gradients, counted):
        if self.is_traced():
            return super().zero_unless(gradients, counted)
        return gradients if counted else list(map(torch.zeros_like, gradients))


class TorchStore(Keras3Store):
    """An optimizer's variables on PyTorch."""

    def add_counter(self, name, value, shape=()):
        # Reading a counter on the CPU doesn't wait for the device.
        with keras.device("cpu"):
            return super().add_counter(name, value, shape)


class TorchUpdate(Keras3Update):
    """An update on PyTorch, in fused operations.

    It computes its gradients out of place, and `keep` zeroes the sums at its end. So an update that
    fails leaves them as they were.
    """

    def add(self, step, sums, gradients, variables):
        if not self.values.is_traced() and step.switch:
            self._last = dict(zip(map(id, sums), gradients))
            return
        summed, summands = [], []
        for total, gradient, variable in zip(sums, gradients, variables):
            if self.store.overwrites(variable):
                total.value.copy_(torch.maximum(total.value, gradient))
            else:
                summed.append(total.value)
                summands.append(_like(total.value, gradient))
        if summed:
            torch._foreach_add_(summed, summands)  # last, see `is_added`

    def totals(self, sums, variables):
        if self.values.is_traced():
            return super().totals(sums, variables)
        found, summed = [], []
        for total, variable in zip(sums, variables):
            gradient = self._last.get(id(total))
            if gradient is not None and not self.store.overwrites(variable):
                summed.append((total.value, _like(total.value, gradient)))
                found.append(None)
            elif gradient is not None:
                found.append(torch.maximum(total.value, gradient))
            else:
                found.append(total.value.clone())
        self._last = {}  # it would keep the gradients in memory
        added = iter(torch._foreach_add(*map(list, zip(*summed))) if summed else ())
        return [next(added) if total is None else total for total in found]

    def find_steps(self, step, absent):
        if self.values.is_traced():
            return super().find_steps(step, absent)
        return {index: step for index in absent if step.covered[index]}

    def averages(self, totals, variables, steps):
        if self.values.is_traced() or not self.options.accumulates:
            return super().averages(totals, variables, steps)
        summed = [total for total, v in zip(totals, variables) if not self.store.overwrites(v)]
        if summed:  # in place, because `totals` made copies
            of_divisor = torch if self.options.weighs else np  # a weight stays on the device
            factor = scale(of_divisor, steps[0], self.options.reduction, lambda value: value)
            torch._foreach_mul_(summed, factor)
        return totals

    # A tensor's version counts its writes in place.

    def snapshot(self, sums):
        if self.values.is_traced():
            return None
        self._last = {}  # {id of a sum: gradient}, in the micro-batch that closes its window
        are_overwritten = map(self.store.overwrites, self.store.variables)
        kept = [s.value.clone() if is_ else None for s, is_ in zip(sums, are_overwritten)]
        return kept, [s.value._version for s in sums], self.store.updates.value._version

    def is_made(self, snapshot):
        return self.store.updates.value._version != snapshot[-1]

    def is_added(self, snapshot, sums):
        kept, versions, _ = snapshot
        return any(
            total.value._version != version
            for total, old, version in zip(sums, kept, versions)
            if old is None
        )

    def restore(self, snapshot, sums):
        for total, old in zip(sums, snapshot[0]):
            if old is not None:
                total.assign(old)

    def assign(self, variable, value):
        if self.values.is_traced():
            super().assign(variable, value)
        else:  # otherwise Keras would send a counter to the device and back
            with keras.device(str(variable.value.device)):
                super().assign(variable, value)

    def keep(self, step, totals, sums, variables):
        if self.values.is_traced():
            super().keep(step, totals, sums, variables)
        else:
            torch._foreach_zero_([total.value for total in sums])

    def branch(self, step, update):
        raise ValueError(
            "gate='conditional' can't be used in torch.compile. Construct "
            f"{type(self.optimizer).__name__} without `gate`; all gates have the same state."
        )


def _like(total, gradient):
    """Return a gradient as a sum needs it, or raise PyTorch's error for its shape."""
    gradient = gradient.to(total.dtype)
    return gradient if gradient.shape == total.shape else gradient.expand_as(total)


def make_parts(optimizer, options):
    """Return an optimizer's parts."""
    values, replicas, store = TorchValues(get_scalar_dtype()), Replicas(), TorchStore(optimizer)
    return Parts(values, replicas, store, TorchUpdate(optimizer, options, values, replicas, store))


class Accumulating(hooks.Hooks):
    """The methods that Keras calls on an optimizer, on PyTorch."""

    _make_parts = staticmethod(make_parts)

    @torch.no_grad()
    def apply(self, grads, trainable_variables=None):
        return super().apply(grads, trainable_variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if self._accumulation.update.is_updating:  # fused updates need the variables' dtypes
            grads = [g.to(v.value.dtype) for g, v in zip(grads, trainable_variables)]
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        # Fused additions write in place, but must not change the caller's tensors.
        def copies(tensors):
            return [ops.convert_to_tensor(tensor).clone() for tensor in tensors]

        return super().stateless_apply(
            copies(optimizer_variables), grads, copies(trainable_variables)
        )
