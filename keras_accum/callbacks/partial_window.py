"""What the callback `ApplyPartialWindow` does, for all hosts. No host is imported here."""

from keras_accum.callbacks.base import SeesTrainings, accumulating_in


class ApplyPartialWindow(SeesTrainings):
    """Close the window that is open at the end of an epoch, before validation if there is one.

    Without it an unfinished window is carried over into the next epoch. With it, its gradients
    make an update of their own (`apply_partial_window()` of the optimizer). List it before
    callbacks that save the model. In a MultiOptimizer it closes the window of each optimizer of
    this package.

    Raises:
        TypeError: at the start of training, if the model's optimizer is none of keras_accum.

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
