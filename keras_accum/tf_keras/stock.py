"""The stock optimizers of this Keras, and the class that accumulates for each."""

from keras_accum import rules
from keras_accum.tf_keras.library import keras, legacy
from keras_accum.tf_keras.optimizer import AccumulatingOptimizer

_register = keras.utils.register_keras_serializable(package="keras_accum")


@_register
class SGDAccumulate(AccumulatingOptimizer, legacy.SGD):
    slot_names = {"momentum": "momentum"}

    def _rule(self):
        return rules.SGD(momentum=self._momentum, nesterov=self.nesterov)


@_register
class AdamAccumulate(AccumulatingOptimizer, legacy.Adam):
    slot_names = {"momentum": "m", "velocity": "v", "velocity_hat": "vhat"}

    def _rule(self):
        return rules.AMSGrad() if self.amsgrad else rules.Adam()


@_register
class AMSGradAccumulate(AccumulatingOptimizer, legacy.Adam):
    fixed = {"amsgrad": True}
    slot_names = AdamAccumulate.slot_names

    def _rule(self):
        return rules.AMSGrad()


@_register
class RMSpropAccumulate(AccumulatingOptimizer, legacy.RMSprop):
    slot_names = {"velocity": "rms", "momentum": "momentum", "average_gradient": "mg"}

    def _rule(self):
        # The stock optimizer has two formulas: its momentum kernels put epsilon under the root.
        return rules.RMSprop(self._momentum, self.centered, epsilon_in_root=self._momentum)
