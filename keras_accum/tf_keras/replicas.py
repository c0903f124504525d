"""Sums over replicas on tf_keras, by the optimizer's own method."""

import contextlib

import tensorflow as tf

from keras_accum.host import is_of_keras
from keras_accum.tensorflow.replicas import TensorFlowReplicas
from keras_accum.tf_keras.imports import key_of, utilities


class TfKerasReplicas(TensorFlowReplicas):
    """A strategy's replicas, whose gradients the optimizer sums.

    method: The name of the optimizer's method that sums (gradient, variable) pairs. A subclass such
        as Horovod's may override it.
    """

    def __init__(self, optimizer, method):
        super().__init__(optimizer)
        self.method = method
        self._summing = set()  # replicas inside the method

    @property
    def is_summing(self):
        """True inside the summing method."""
        return self.index() in self._summing

    @contextlib.contextmanager
    def in_method(self):
        """Scope of the method: in it, `reduce` calls the stock optimizer's."""
        replica = self.index()
        self._summing.add(replica)
        try:
            yield
        finally:
            self._summing.discard(replica)

    def sum_pairs(self, pairs):
        """Return pairs summed by the stock optimizer."""
        return getattr(type(self.optimizer)._stock_class, self.method)(self.optimizer, pairs)

    def reduce(self, tensors, variables):
        pairs = list(zip(tensors, variables))
        if self.is_summing:
            pairs = self.sum_pairs(pairs)
        else:
            with self.in_method():
                pairs = getattr(self.optimizer, self.method)(pairs)
        sums = {key_of(variable): total for total, variable in pairs}
        return [sums[key_of(variable)] for variable in variables]

    def reduce_weighted(self, gradients, variables, weight, of_window):
        if self._sums_as_keras():
            return super().reduce_weighted(gradients, variables, weight, of_window)
        # A user's method may sum, average or scale: a 1 that it gets shows by which factor.
        pair = tf.stack([weight, tf.ones_like(weight)])
        gradients, pair = super().reduce_weighted(gradients, variables, pair, of_window)
        return gradients, pair[0] * self.count() / pair[1]

    def _sums_as_keras(self):
        """Return True unless a user's function or method sums gradients."""
        function = getattr(self.optimizer, "gradient_aggregator", None)  # in the legacy style
        is_default = function is None or function is utilities.all_reduce_sum_gradients
        method = getattr(type(self.optimizer), self.method)
        return is_default and (is_of_keras(method) or method.__module__.startswith("keras_accum."))
