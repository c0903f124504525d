"""Train steps in slices on PyTorch."""

import keras
import torch

from keras_accum.keras3 import slices
from keras_accum.keras3.in_backward_torch import hooked


class Step(slices.Step):
    """A train step in slices on PyTorch: a loop in Python."""

    _update = "apply"
    flatten = staticmethod(keras.tree.flatten)

    def __init__(self, model, size, loss):
        super().__init__(model, size, loss)
        self._traced = {}  # what `traced` returns, by which arrays of a batch are None

    def check(self):
        super().check()
        self._traced.clear()  # the model may have another loss now

    def __call__(self, data):
        with self.marked():
            return self._step(data)

    def _step(self, data):
        rows = self.rows_of(data)
        model = self.model
        if self.is_one_slice(rows) or not model.trainable_weights:
            return self.own(data)
        variables = model.trainable_weights[:]
        sums = self.gradients(data, rows)
        gradients = [s if s is None else s.to(v.value.dtype) for s, v in zip(sums, variables)]
        with torch.no_grad():
            model.optimizer.apply(gradients, variables)
        return model.get_metrics_result()

    def track(self, *arguments):
        with torch.no_grad():
            super().track(*arguments)

    def gradient(self, objective):
        """Let `sums` have the gradients of `objective()`; return None, and what else it returns."""
        loss, found = objective()
        loss.backward()
        return None, found

    def gradient_of_arrays(self, objective, arrays):
        """Return the gradients of `objective(arrays)`, and what it returns besides."""
        for array in arrays:
            array.requires_grad_(array.is_floating_point())
        loss, found = objective(arrays)
        loss.backward()
        return [array.grad for array in arrays], found

    def sums(self, gradients, data, rows):
        """Return the sums of the gradients of slices, None for variables without a gradient.

        `backward` adds a gradient as soon as it is complete, while it is in the processor's cache.
        """
        variables, sums = self.model.trainable_weights, {}

        def adds_to_sum_of(variable):
            def add(parameter):
                sums[id(variable)] = self._add(sums.get(id(variable)), parameter.grad)
                parameter.grad = None

            return add

        for variable in variables:
            variable.value.grad = None  # also where Keras's `zero_grad` leaves it
        with hooked(variables, adds_to_sum_of):
            for part, count in self._slices(data, rows):
                gradients(part, count)
        return [sums.get(id(variable)) for variable in variables]

    @staticmethod
    def _add(total, gradient):
        if total is None:
            return gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        return total.add_(gradient)

    @torch.no_grad()
    def fold(self, function, carry, data, rows):
        """Return `function(carry, slice, samples of the slice)`, called with each slice in turn."""
        for part, count in self._slices(data, rows):
            carry = function(carry, part, count)
        return carry

    def scan(self, function, carry, data, rows):
        """Return the last carry, and the list of arrays that `function` returns besides, joined."""
        found = []

        def step(carry, data, count):
            carry, arrays = function(carry, data, count)
            found.append(arrays)
            return carry

        carry = self.fold(step, carry, data, rows)
        return carry, [torch.cat(parts) for parts in zip(*found)]

    @torch.no_grad()
    def traced(self, function, data):
        """Return what `function` returns for a slice, or what it has returned for one before."""
        kind = str(keras.tree.map_structure(lambda a: a is None, data))
        if kind not in self._traced:
            self._traced[kind] = function(self._part(data, 0, self.size))
        return self._traced[kind]

    def kept(self, *state):
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return super().kept(), torch.get_rng_state(), cuda

    def put_back(self, kept, *state):
        values, cpu, cuda = kept
        super().put_back(values)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    def is_out_of_memory(self, error):
        texts = "out of memory", "can't allocate memory", "not enough memory"
        return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)

    def _slices(self, data, rows):
        for start in range(0, rows, self.size):
            stop = min(start + self.size, rows)
            yield self._part(data, start, stop), stop - start

    @staticmethod
    def _part(data, start, stop):
        return keras.tree.map_structure(lambda a: a if a is None else a[start:stop], data)
