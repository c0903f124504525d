"""Train steps in slices on PyTorch."""

import contextlib

import keras
import torch

from keras_accum.keras3 import slices


class Step(slices.Step):
    """A train step in slices on PyTorch: a loop in Python."""

    def __init__(self, model, size, loss):
        super().__init__(model, size, loss)
        self._without_divisors = {}  # for batches that need no sum, by which arrays are None

    def check(self):
        super().check()
        self._without_divisors.clear()  # the model may have another loss now

    def __call__(self, data):
        rows = self.rows([a for a in keras.tree.flatten(data) if a is not None])
        model = self.model
        if rows <= self.size or not model.trainable_weights:
            return self.own(data)
        variables = model.trainable_weights[:]
        one_pass = self._of_outputs if self.loss == "batch" else self._of_samples
        sums = one_pass(variables, data, rows)
        _forget_gradients(variables)
        gradients = [s if s is None else s.to(v.value.dtype) for s, v in zip(sums, variables)]
        with torch.no_grad():
            model.optimizer.apply(gradients, variables)
        return model.get_metrics_result()

    def _of_samples(self, variables, data, rows):
        """Return the gradients of a loss that is a mean over samples."""
        model, sums = self.model, [None] * len(variables)
        divisors = self._divisors(data, rows)
        for (x, y, sample_weight), count in self._slices(data, rows):
            y_pred = slices.call(model, x, training=True)
            _forget_gradients(variables)
            with self.losses.as_parts(count, rows, divisors):
                loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
                model.optimizer.scale_loss(loss).backward()
                with torch.no_grad():
                    self.track(loss, count, x, y, y_pred, sample_weight)
            sums = [self._add(s, v.value.grad, count / rows) for s, v in zip(sums, variables)]
        return sums

    def _of_outputs(self, variables, data, rows):
        """Return the gradients of a loss of all outputs of the batch."""
        model, sums = self.model, [None] * len(variables)
        x, y, sample_weight = slices.unpack(data)
        found, penalties = [], 0.0
        with torch.no_grad(), self._state_restored():
            for (x_of_slice, _, _), count in self._slices(data, rows):
                y_pred = slices.call(model, x_of_slice, training=True)
                penalties = penalties + self.penalties(model.losses, count / rows)
                found.append(self.outputs.flat(y_pred))
        arrays, masks = [[torch.cat(parts) for parts in zip(*lists)] for lists in zip(*found)]
        for array in arrays:
            array.requires_grad_(array.is_floating_point())
        y_pred = self.outputs.packed(arrays, masks)
        loss = self.loss_of_outputs(y, y_pred, sample_weight)
        model.optimizer.scale_loss(loss).backward()
        with torch.no_grad():
            self.track(loss + penalties, rows, x, y, y_pred, sample_weight)
        of_arrays = [array.grad for array in arrays]
        del y_pred, arrays, masks, found, loss
        start = 0
        for (x_of_slice, _, _), count in self._slices(data, rows):
            y_pred = slices.call(model, x_of_slice, training=True)
            _forget_gradients(variables)
            of_slice = [g if g is None else g[start : start + count] for g in of_arrays]
            penalties = model.optimizer.scale_loss(self.penalties(model.losses, count / rows))
            (self.product(keras.tree.flatten(y_pred), of_slice) + penalties).backward()
            sums = [self._add(s, v.value.grad, 1) for s, v in zip(sums, variables)]
            start += count
        return sums

    @contextlib.contextmanager
    def _state_restored(self):
        """A scope after which layers, metrics and PyTorch's generators are as before."""
        variables = [*self.model.non_trainable_variables, *self.model.metrics_variables]
        before = [v.value.clone() for v in variables]
        with torch.random.fork_rng():
            yield
        for variable, value in zip(variables, before):
            variable.assign(value)

    @staticmethod
    def _add(total, gradient, share):
        if gradient is None:
            return total
        if total is None:
            wide = torch.promote_types(gradient.dtype, torch.float32)
            return gradient.to(wide) * share
        return total.add_(gradient, alpha=share)

    def _slices(self, data, rows):
        for start in range(0, rows, self.size):
            stop = min(start + self.size, rows)
            part = keras.tree.map_structure(
                lambda a: a if a is None else a[start:stop],  # noqa: B023, called at once
                data,
            )
            yield slices.unpack(part), stop - start

    def _divisors(self, data, rows):
        """Return what each loss of the batch is divided by, None if in proportion to samples."""
        kind = str(keras.tree.map_structure(lambda a: a is None, data))
        if kind in self._without_divisors:
            return self._without_divisors[kind]
        sums = None
        with torch.no_grad():
            for part, count in self._slices(data, rows):
                found = self.losses.divisors(*part, count)
                if all(divisor is None for divisor in found):
                    self._without_divisors[kind] = found
                    return found
                both = zip(sums or [0] * len(found), found)
                sums = [None if f is None else s + f for s, f in both]
        return sums


def _forget_gradients(variables):
    """What `model.zero_grad()` does, which leaves out one of two variables of the same path."""
    for variable in variables:
        variable.value.grad = None
