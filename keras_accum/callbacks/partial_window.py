"""The callback `ApplyPartialWindow`, for all hosts. No host is imported here."""

from keras_accum.callbacks.base import SeesTrainings, accumulating_in


class ApplyPartialWindow(SeesTrainings):
    """Close the open window at the end of each epoch, before the validation.

    Without this callback, an unfinished window continues in the next epoch. With this callback, the
    gradients of an unfinished window make an update of their own: the callback calls
    `apply_partial_window()` of the optimizer. List `ApplyPartialWindow` before callbacks that save
    the model. In a MultiOptimizer, the callback closes the window of each optimizer of this
    package.

    Raises:
        TypeError: At the start of training, if the model's optimizer isn't of this package.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import ApplyPartialWindow, SGDAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[ApplyPartialWindow()])
    >>> model.optimizer.completed_updates
    2
    """

    _takes_several = True

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._training = False

    def on_epoch_begin(self, epoch, logs=None):
        self._training = True

    def on_test_begin(self, logs=None):
        self._close()

    def on_epoch_end(self, epoch, logs=None):
        self._close()
        self._training = False

    def _close(self):
        if self._training:
            for optimizer in accumulating_in(self.model.optimizer):
                optimizer.apply_partial_window()
