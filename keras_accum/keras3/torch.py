"""The PyTorch backend. It runs eagerly, so Python knows the switch.

Inside a window a micro-batch is one fused addition. The closing one isn't added in place: the sums
with its gradients become a copy, from which the stock optimizer updates. Under `torch.compile`, the
switch is a tensor, as on other backends.

Python waits for the device whenever it reads a value from it. Inside a window there is no such
read, except with `skip_nonfinite`, `skip_norm`, a tensor in `close_window`, or a schedule.
"""

import math
import numbers
from typing import NamedTuple

import keras
import numpy as np
import torch
from keras import ops

from keras_accum.engine.parts import Parts, Replicas, scalar_dtype
from keras_accum.engine.window import is_known
from keras_accum.host import check_members
from keras_accum.keras3 import overrides
from keras_accum.keras3.store import Keras3Store
from keras_accum.keras3.update import Keras3Update
from keras_accum.keras3.values import Keras3Values

# The member of Keras's own class overridden here, beside those in `overrides`.
OF_KERAS = ("_backend_update_step",)
check_members(keras, keras.optimizers.Optimizer, OF_KERAS)
# Private members of PyTorch: one call for all tensors.
OF_TORCH = "_foreach_add", "_foreach_add_", "_foreach_mul_", "_foreach_norm", "_foreach_zero_"
OF_UTILITIES = "_flatten_dense_tensors", "_unflatten_dense_tensors"


def check_torch():
    """Raise an ImportError that names a private member which this PyTorch lacks."""
    check_members(torch, torch, OF_TORCH)
    check_members(torch, torch._utils, OF_UTILITIES)


check_torch()


class SumTensors(NamedTuple):
    """The tensors of sums. Keras takes a microsecond for each `value`, so they are kept."""

    variables: list
    tensors: list
    dtypes: list
    shapes: list


class TorchValues(Keras3Values):
    """PyTorch's mathematics for the engine.

    is_plain: True in a step in which no trace and no scope replaces the values of variables.
    """

    restores_checkpoints = False
    _of_model = SumTensors(None, [], [], [])  # of all sums, or those of the last call

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.is_plain = False  # here, because a compiled step depends on which attributes exist

    def ops_of(self, value):
        return super().ops_of(value) if is_known(value) or self.is_traced() else torch

    def traces(self):
        # If a compiled function fails, PyTorch reverts Python's side effects.
        return ["torch.compile"] if self.is_traced() else []

    def is_traced(self):
        return not self.is_plain and torch.compiler.is_compiling()

    def value(self, variable):
        return variable._value if self.is_plain else variable.value  # which takes microseconds

    def read_counter(self, counter):
        value = self.value(counter)
        if self.is_traced():
            return value
        return value.cpu().numpy() if counter.shape else value.item()

    def read_scalar(self, variable):
        value = self.value(variable)
        return value if self.is_traced() or value.device.type != "cpu" else value.item()

    def all_finite(self, gradients):
        if self.is_traced():
            return super().all_finite(gradients)
        if _have_norms(gradients):
            norms = torch.stack(torch._foreach_norm(gradients, math.inf))
            return int(norms.max().item() < math.inf)  # false for NaN, which the maximum keeps
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
        return np.dtype(dtype).type(value.item() if isinstance(value, torch.Tensor) else value)

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

    # -- lists, fused in one call each -------------------------------------------------------------

    adds_multiples = True

    def _read(self, totals):
        """Return the SumTensors of these variables. In a trace, nothing is kept."""
        if self.is_traced():
            return _read_tensors(totals)
        # Keras replaces all of them or none: on another device, or in a stateless scope.
        known = self._of_model
        if totals is not known.variables or self.value(totals[0]) is not known.tensors[0]:
            known = self._of_model = _read_tensors(totals)
        return known

    def cast_each(self, gradients, totals):
        dtypes = self._read(totals).dtypes
        if [g.dtype for g in gradients] != dtypes:
            gradients = [g.to(dtype) for g, dtype in zip(gradients, dtypes)]
        return gradients

    def shape_each(self, gradients, totals):
        shapes = self._read(totals).shapes
        if [g.shape for g in gradients] != shapes:  # or PyTorch's error
            gradients = [g.expand(shape) for g, shape in zip(gradients, shapes)]
        return gradients

    def add_each(self, replicas, totals, gradients, factor):
        if totals:
            torch._foreach_add_(self._read(totals).tensors, gradients, alpha=factor)

    def plus_each(self, totals, gradients, factor):
        return list(torch._foreach_add(self._read(totals).tensors, gradients, alpha=factor))

    def copies(self, totals):
        tensors = super().copies(totals)
        return tensors if self.is_traced() else [tensor.clone() for tensor in tensors]

    def scale_copies(self, tensors, factor):
        if self.is_traced():
            return super().scale_copies(tensors, factor)
        if is_known(factor):
            factor = tensors[0].new_full((), float(factor))  # a tensor is faster than a number
        torch._foreach_mul_(tensors, factor)
        return tensors

    def zero_each(self, replicas, totals):
        torch._foreach_zero_(self._read(totals).tensors)


def _is_in_scope():
    """Return True in a scope that may replace the values of variables, as another scope knows."""
    with keras.StatelessScope(initialize_variables=False) as scope:
        return scope.original_scope is not None


def _read_tensors(totals):
    tensors = [total.value for total in totals]
    return SumTensors(totals, tensors, [t.dtype for t in tensors], [t.shape for t in tensors])


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


class TorchUpdate(Keras3Update):
    """An update on PyTorch."""

    def assign(self, variable, value):
        if self.values.is_traced():
            super().assign(variable, value)
        elif isinstance(value, (int, float, np.generic)):
            self.values.value(variable).fill_(float(value))
        else:  # Keras would send a counter to the device and back
            self.values.value(variable).copy_(torch.as_tensor(value))

    def branch(self, step, update):
        raise ValueError(
            "gate='conditional' can't be used in torch.compile. Construct "
            f"{type(self.optimizer).__name__} without `gate`; all gates have the same state."
        )


def make_parts(optimizer, options):
    """Return an optimizer's parts."""
    values = TorchValues(scalar_dtype(keras.config.floatx()))
    three = values, TorchReplicas(), TorchStore(optimizer)
    return Parts(*three, TorchUpdate(optimizer, options, *three))


class TorchOverrides(overrides.Overrides):
    """The methods that Keras calls on an optimizer, on PyTorch."""

    _make_parts = staticmethod(make_parts)

    @torch.no_grad()
    def apply(self, grads, trainable_variables=None):
        values = self._accumulation.values
        values.is_plain = not (values.is_traced() or _is_in_scope())
        try:
            return super().apply(grads, trainable_variables)
        finally:
            values.is_plain = False

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
