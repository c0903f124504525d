"""The accumulating optimizer of Keras 2: its train step and its learning rate."""

import numbers

import keras

from keras_accum import arguments, base
from keras_accum.keras2.port import Port
from keras_accum.keras2.state import shapes_of

K = keras.backend


class AccumulatingOptimizer(base.Optimizer):
    """The base class of these optimizers; it comes before the stock class."""

    _port = Port

    def get_updates(self, loss, params):
        """Return a list with the operation that makes the step of one micro-batch."""
        port = self._accumulation.port
        # A layer in two parts of a model is in this Keras's list twice.
        params = list({variable.name: variable for variable in params}.values())
        with port.unclipped():
            gradients = keras.optimizers.Optimizer.get_gradients(self, loss, params)
        accumulation = self._accumulation
        with accumulation.state.restored(shapes_of(params)):
            accumulation.has_stepped = True
            port.start_model(params)
            self.updates = [port.train_step(loss, gradients, params)]
        self.weights = accumulation.state.variables()
        return self.updates

    def get_weights(self):
        """Return the state as a list of arrays, in the order of files."""
        return K.batch_get_value(self.weights)

    def close_window(self, when=True):
        """Not available on this Keras, whose train step can't be changed.

        Args:
            when: Anything.

        Raises:
            RuntimeError: In any case. Between train steps, call `apply_partial_window()`.
        """
        raise RuntimeError(
            "`close_window` isn't available on Keras 2.0 to 2.3, whose train step can't be "
            "changed: call `apply_partial_window()` between train steps."
        )

    def decide(self, is_update):
        """Not available on this Keras, whose train step can't be changed.

        Args:
            is_update: Anything.

        Raises:
            RuntimeError: In any case. The cheapest gate here is `gate="conditional"`.
        """
        raise RuntimeError(
            "`decide` isn't available on Keras 2.0 to 2.3, whose train step can't be changed: "
            "construct the optimizer with gate='conditional'."
        )

    @property
    def learning_rate(self):
        """The learning rate, a variable. A number that is assigned applies to the next update."""
        return self._accumulation.port.rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        port = self._accumulation.port
        if isinstance(learning_rate, numbers.Real) and port.rate is not None:
            K.set_value(port.rate, arguments.check_number("learning_rate", learning_rate))
        else:
            port.rate = learning_rate  # the stock constructor assigns the variable

    lr = learning_rate

    @classmethod
    def _from_stock_config(cls, config, custom_objects):
        return cls(**config)
