"""An optimizer class of your own, with accumulation: momentum over gradients of norm one."""

import keras
from keras import ops

from keras_accum.keras3 import accumulating


class NormalizedSGD(keras.optimizers.Optimizer):
    def __init__(self, learning_rate=0.01, momentum=0.9, name="normalized_sgd", **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, self.momentum * momentum + gradient / ops.norm(gradient))
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * momentum)

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum}


NormalizedSGDAccumulate = accumulating(NormalizedSGD)
