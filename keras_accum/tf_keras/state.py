"""What the state is on this Keras, for both styles of optimizers."""

import abc

import numpy as np
import tensorflow as tf

from keras_accum import base, kernels
from keras_accum.tensorflow_port import TensorFlowPort
from keras_accum.tf_keras.library import IMPORT_KERAS, keras


class StatePort(TensorFlowPort):
    """What arguments and state of an optimizer are on this Keras."""

    host, title = "tf_keras", "Keras 2 on TensorFlow 2 (tf_keras, tf.keras)"
    import_keras = IMPORT_KERAS
    can_reduce_late = True
    variables = ()

    @property
    def updates(self):
        return self.optimizer.iterations

    @property
    @abc.abstractmethod
    def rate(self):
        """The learning rate: a number, a variable or a tensor; a schedule or another callable."""

    # -- values ------------------------------------------------------------------------------------

    def read(self, variable):
        return keras.backend.get_value(variable)

    def read_all(self, variables):
        return keras.backend.batch_get_value(variables)

    def write(self, variable, value):
        if tf.compat.v1.executing_eagerly_outside_functions():
            kernels.write(variable, value)
        else:
            keras.backend.set_value(variable, value)

    def rate_state(self):
        if self.rate is None or callable(self.rate):  # also a schedule
            return {}
        return {"learning_rate": np.asarray(self.read(self.rate))}

    def write_rate(self, rate):
        if self.rate_state():
            self.optimizer.learning_rate = float(rate)

    def add_waiting(self, name, array):
        return keras.backend.variable(array, dtype=np.asarray(array).dtype, name=name)

    # -- from and to stock optimizers --------------------------------------------------------------

    @abc.abstractmethod
    def variables_of(self, optimizer):
        """Return a stock optimizer's variables by name, and the keys of the weights, in order."""

    @abc.abstractmethod
    def build_stock(self, optimizer):
        """Build a stock optimizer for the same variables."""

    def state_of_stock(self, optimizer):
        found, keys = self.variables_of(optimizer)
        return dict(zip(found, self.read_all(list(found.values())))), keys

    def make_stock(self, config):
        state = self.accumulation.state
        if state.waiting:
            state.check_is_built("to_stock")
        return self.optimizer._stock_class(**config)

    def continue_stock(self, optimizer):
        if self.variables:
            self.build_stock(optimizer)
            state = self.accumulation.state.read()
            for name, variable in self.variables_of(optimizer)[0].items():
                self.write(variable, state[name])


class Checkpointed(base.Optimizer):
    """An optimizer that TensorFlow saves in checkpoints and SavedModels."""

    @property
    def _update_uid(self):
        return super()._update_uid

    @_update_uid.setter
    def _update_uid(self, uid):
        # TensorFlow sets this attribute when it starts to restore this object from a checkpoint.
        super(Checkpointed, type(self))._update_uid.fset(self, uid)
        self._accumulation.state.waiting.drop()

    def _check_nothing_waits(self):
        """Raise a ValueError if TensorFlow saves an optimizer in which a state waits."""
        if self._accumulation.state.waiting:
            raise ValueError(
                "A state waits in this optimizer for its variables, and a checkpoint or SavedModel "
                "can't hold a waiting state: call `optimizer.build(model.trainable_variables)` "
                "first."
            )
