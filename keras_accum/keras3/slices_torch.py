"""Train steps in slices on PyTorch."""

import keras
import torch

from keras_accum.keras3 import slices


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
        _forget_gradients(variables)
        gradients = [s if s is None else s.to(v.value.dtype) for s, v in zip(sums, variables)]
        with torch.no_grad():
            model.optimizer.apply(gradients, variables)
        return model.get_metrics_result()

    def track(self, *arguments):
        with torch.no_grad():
            super().track(*arguments)

    def gradient(self, objective):
        """Return the gradients of `objective()`, and what it returns besides."""
        loss, found = objective()
        _forget_gradients(self.model.trainable_weights)
        loss.backward()
        return [v.value.grad for v in self.model.trainable_weights], found

    def gradient_of_arrays(self, objective, arrays):
        """Return the gradients of `objective(arrays)`, and what it returns besides."""
        for array in arrays:
            array.requires_grad_(array.is_floating_point())
        loss, found = objective(arrays)
        loss.backward()
        return [array.grad for array in arrays], found

    def sums(self, gradients, data, rows):
        """Return the sums of the gradients of slices, None for variables without a gradient."""
        sums = [None] * len(self.model.trainable_weights)
        for part, count in self._slices(data, rows):
            sums = [self._add(s, g) for s, g in zip(sums, gradients(part, count))]
        return sums

    @staticmethod
    def _add(total, gradient):
        if gradient is None:
            return total
        if total is None:
            wide = torch.promote_types(gradient.dtype, torch.float32)
            return gradient.to(wide)
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


def _forget_gradients(variables):
    """What `model.zero_grad()` does, which leaves out one of two variables of the same path."""
    for variable in variables:
        variable.value.grad = None
