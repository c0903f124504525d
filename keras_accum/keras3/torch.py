"""The PyTorch backend. It runs eagerly, so Python knows the switch.

Inside a window a micro-batch is one fused addition. The closing one isn't added in place: the sums
with its gradients become a copy, from which the stock optimizer updates. Under `torch.compile`, the
switch is a tensor, as on other backends.

Python waits for the device whenever it reads a value from it. Inside a window there is no such
read, except with `skip_nonfinite`, `skip_norm`, a tensor in `close_window`, or a schedule.
"""

import numbers
from itertools import compress
from typing import NamedTuple

import keras
import numpy as np
import torch
from keras import ops

from keras_accum.engine.parts import Parts, Replicas, scalar_dtype
from keras_accum.engine.sums import Sums, TracedSums
from keras_accum.engine.window import is_known, scale
from keras_accum.host import check_members
from keras_accum.keras3 import hooks
from keras_accum.keras3.store import Keras3Store
from keras_accum.keras3.update import Keras3Update
from keras_accum.keras3.values import Keras3Values

# The member of Keras's own class overridden here, beside those in `hooks`.
OF_KERAS = ("_backend_update_step",)
check_members(keras, keras.optimizers.Optimizer, OF_KERAS)
# Private members of PyTorch: one call for all tensors, and the number of writes in place.
OF_TORCH = "_foreach_add", "_foreach_add_", "_foreach_mul_", "_foreach_norm", "_foreach_zero_"
OF_UTILITIES = "_flatten_dense_tensors", "_unflatten_dense_tensors"
OF_TENSOR = ("_version",)


def check():
    """Raise an ImportError that names a private member which this PyTorch lacks."""
    check_members(torch, torch, OF_TORCH)
    check_members(torch, torch._utils, OF_UTILITIES)
    check_members(torch, torch.Tensor, OF_TENSOR)


check()


class TorchValues(Keras3Values):
    """PyTorch's mathematics for the engine."""

    def traces(self):
        # If a compiled function fails, PyTorch reverts Python's side effects.
        return ["torch.compile"] if self.is_traced() else []

    def is_traced(self):
        return torch.compiler.is_compiling()

    @property
    def counter_ops(self):
        return ops if self.is_traced() else np

    def read_counter(self, counter):
        value = self.value(counter)
        return value if self.is_traced() else value.cpu().numpy()[()]

    def count_if(self, condition):
        return super().count_if(condition) if self.is_traced() else np.int32(bool(condition))

    def all_finite(self, gradients):
        if self.is_traced():
            return super().all_finite(gradients)
        if _have_norms(gradients):
            are_finite = torch.isfinite(torch.stack(torch._foreach_norm(gradients, float("inf"))))
        else:
            are_finite = torch.stack([torch.isfinite(gradient).all() for gradient in gradients])
        return self.count_if(are_finite.all())

    def norm(self, tensors):
        if self.is_traced() or not _have_norms(tensors):
            return super().norm(tensors)
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2.0)))

    def cast(self, value, dtype):
        if isinstance(value, numbers.Number):  # filled in by the device: a copy would wait
            return ops.empty((), dtype).fill_(value)
        return super().cast(value, dtype)

    def scalar(self, value, dtype):
        is_there = isinstance(value, torch.Tensor) and value.device.type != "cpu"
        if self.is_traced() or is_there:  # reading it would wait
            return self.cast(value, dtype)
        dtype = keras.backend.standardize_dtype(dtype)
        return np.asarray(value.item() if isinstance(value, torch.Tensor) else value, dtype)[()]

    def times(self, value, factor):
        # `ops.where` would copy the 0.0 to the device.
        return torch.where(factor == 0, 0.0, value * factor)

    def scale_all(self, tensors, factor):
        if self.is_traced() or len({tensor.dtype for tensor in tensors}) != 1:
            return super().scale_all(tensors, factor)
        flat = torch._utils._flatten_dense_tensors(tensors)  # one call each
        # Of one tensor, this is a view, and the tensor may be the caller's.
        scaled = flat.mul(factor) if len(tensors) == 1 else flat.mul_(factor)
        if not is_known(factor) or factor == 0:
            scaled.masked_fill_(self.cast(factor, scaled.dtype) == 0, 0.0)
        return torch._utils._unflatten_dense_tensors(scaled, tensors)

    def zero_unless(self, gradients, counted):
        if is_known(counted) and counted:
            return gradients
        return super().zero_unless(gradients, counted)


def _have_norms(tensors):
    """Return True if fused norms take these tensors, all in float32 or float64, none empty."""
    kinds = {tensor.dtype for tensor in tensors}
    is_plain = len(kinds) == 1 and kinds <= {torch.float32, torch.float64}
    return is_plain and all(tensor.numel() for tensor in tensors)


class TorchReplicas(Replicas):
    """A single device, maybe in one of several processes, whose gradients PyTorch averages."""

    def share(self, weight, loss, group=None):
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return weight, loss
        processes = distributed.get_world_size(group)
        if processes == 1:
            return weight, loss
        if loss is None:
            raise ValueError(
                "In several processes `weigh` needs the loss, because DistributedDataParallel "
                "gives each process's gradient the same weight. Before `backward`, write `loss = "
                "optimizer.weigh(weight, loss)`, which multiplies the loss by this process's share "
                f"in the sum of weights. Received: weight={weight}, in {processes} processes"
            )
        dtype = torch.promote_types(loss.dtype, torch.float32)
        own = ops.convert_to_tensor(weight, dtype).detach().to(loss.device)
        total = own.clone()
        distributed.all_reduce(total, group=group)
        share = torch.where(total == 0, 0.0, own * processes / total)
        return total, loss * share.to(loss.dtype)


class TorchStore(Keras3Store):
    """An optimizer's variables on PyTorch.

    has_like_sums: True if each sum has its variable's dtype.
    """

    has_like_sums = False

    def create_sums(self):
        sums = super().create_sums()
        self.has_like_sums = all(total.dtype == v.dtype for total, v in zip(sums, self.variables))
        return sums

    def add_counter(self, name, value, shape=()):
        # Reading a counter on the CPU doesn't wait for the device.
        with keras.device("cpu"):
            return super().add_counter(name, value, shape)


class SumTensors(NamedTuple):
    """The tensors of sums, and what a gradient is compared with."""

    values: list
    dtypes: list
    shapes: list
    unsummed: list  # indices of those that keep a maximum, such as scales of float8

    def as_summed(self, gradients):
        """Return gradients in the sums' dtypes and shapes, or raise PyTorch's error."""
        if [g.dtype for g in gradients] != self.dtypes:
            gradients = [g.to(dtype) for g, dtype in zip(gradients, self.dtypes)]
        if [g.shape for g in gradients] != self.shapes:
            gradients = [g.expand(shape) for g, shape in zip(gradients, self.shapes)]
        return gradients


class EagerSums(Sums):
    """Gradient sums in fused operations.

    The gradients of the micro-batch that closes a window are added out of place, and `keep` zeroes
    the sums at the end. So an update that fails leaves them as they were.
    """

    multiply = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._traced = TracedSums(*arguments)
        self._of_model = None  # SumTensors of all sums: Keras takes a microsecond for each `value`
        self._added = None  # the first sum that the step adds to, and its version before

    def in_step(self):
        if self.values.is_traced() or not self.store.sums:
            return self._traced
        # Keras replaces all of them or none: on another device, or in a stateless scope.
        if self._of_model is None or self.store.sums[0].value is not self._of_model.values[0]:
            self._of_model = self._read(self.store.variables)
        return self

    def _find(self, variables):
        """Return the SumTensors of these variables' sums."""
        return self._of_model if variables is self.store.variables else self._read(variables)

    def _read(self, variables):
        values = [total.value for total in self.store.list_sums(variables)]
        are_summed = self.store.are_summed(variables)
        unsummed = [index for index, is_summed in enumerate(are_summed) if not is_summed]
        return SumTensors(values, [v.dtype for v in values], [v.shape for v in values], unsummed)

    def as_summed(self, gradients, variables):
        return self._find(variables).as_summed(gradients)

    def add(self, step, batch):
        if step.switch:
            return batch
        tensors = self._find(batch.variables)
        gradients = tensors.as_summed(batch.gradients)
        summed = tensors.values
        for index in tensors.unsummed:
            summed[index].copy_(torch.maximum(summed[index], gradients[index]))
        if tensors.unsummed:
            rest = [i for i in range(len(summed)) if i not in tensors.unsummed]
            summed, gradients = ([values[i] for i in rest] for values in (summed, gradients))
        if summed:
            self._added = summed[0], summed[0]._version
            torch._foreach_add_(summed, gradients, alpha=batch.factor)
        return None

    def totals(self, variables, batch=None):
        if batch is None:
            return [total.clone() for total in self._find(variables).values]
        tensors = self._find(batch.variables)
        gradients = tensors.as_summed(batch.gradients)
        totals = list(torch._foreach_add(tensors.values, gradients, alpha=batch.factor))
        for index in tensors.unsummed:
            totals[index] = torch.maximum(tensors.values[index], gradients[index])
        absent = variables[len(totals) :]
        sums = self._find(absent).values if absent else ()
        return totals + [total.clone() for total in sums]

    def averages(self, totals, variables, steps):
        are_summed = self.store.are_summed(variables)
        summed = list(compress(totals, are_summed))
        of_divisor = np if is_known(steps[0].divisor) else torch  # a weight stays on the device
        factor = scale(of_divisor, steps[0], self.options, lambda value: value)
        if is_known(factor) and len({total.dtype for total in summed}) == 1:
            factor = summed[0].new_full((), float(factor))  # a tensor is faster than a number
        if summed:
            torch._foreach_mul_(summed, factor)  # in place, because `totals` made copies
        return totals

    def keep(self, step, totals, variables):
        torch._foreach_zero_(self._find(variables).values)

    def mark(self):
        self._added = None
        return {i: self._of_model.values[i].clone() for i in self._of_model.unsummed}

    def is_added(self, mark):
        if self._added is None:
            return False
        first, version = self._added  # which counts the writes in place
        return first._version != version

    def undo(self, mark):
        for index, old in mark.items():
            self._of_model.values[index].copy_(old)

    def clear(self):
        torch._foreach_zero_(self._of_model.values)


class TorchUpdate(Keras3Update):
    """An update on PyTorch."""

    def mark(self):
        return None if self.values.is_traced() else self.store.updates.value._version

    def is_made(self, mark):
        return self.store.updates.value._version != mark

    def undo(self, mark):
        """Do nothing: Keras counts an update last."""

    def assign(self, variable, value):
        if self.values.is_traced():
            super().assign(variable, value)
        elif is_known(value) and np.ndim(value) == 0:
            variable.value.fill_(value.item() if isinstance(value, np.generic) else value)
        else:  # otherwise Keras would send a counter to the device and back
            with keras.device(str(variable.value.device)):
                super().assign(variable, value)

    def branch(self, step, update):
        raise ValueError(
            "gate='conditional' can't be used in torch.compile. Construct "
            f"{type(self.optimizer).__name__} without `gate`; all gates have the same state."
        )


def make_parts(optimizer, options):
    """Return an optimizer's parts."""
    values = TorchValues(scalar_dtype(keras.config.floatx()))
    three = values, TorchReplicas(), TorchStore(optimizer)
    return Parts(*three, EagerSums(options, *three), TorchUpdate(optimizer, options, *three))


class TorchHooks(hooks.Hooks):
    """The methods that Keras calls on an optimizer, on PyTorch."""

    _make_parts = staticmethod(make_parts)

    @torch.no_grad()
    def apply(self, grads, trainable_variables=None):
        return super().apply(grads, trainable_variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if self._accumulation.update.is_updating and not self._accumulation.store.has_like_sums:
            # Fused updates need the variables' dtypes.
            grads = [g.to(v.value.dtype) for g, v in zip(grads, trainable_variables)]
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        # Fused additions write in place, but must not change the caller's tensors.
        def copies(tensors):
            return [ops.convert_to_tensor(tensor).clone() for tensor in tensors]

        return super().stateless_apply(
            copies(optimizer_variables), grads, copies(trainable_variables)
        )
