"""The callback `PythonGate`, for all hosts. No host is imported here."""

from keras_accum.base import inner
from keras_accum.callbacks.base import SubstitutesTrainFunction, steps_per_execution
from keras_accum.schedule import AccumulationSchedule
from keras_accum.train_functions import Picker


class PythonGate(SubstitutesTrainFunction):
    """Let Python choose one of two traced train functions for each micro-batch of `fit`.

    One function only adds gradients to the accumulators. The other function makes the update at the
    end of a window. Neither function has a conditional, and inside a window no update is computed.
    This is the cheapest micro-batch, also under a `tf.distribute` strategy. The numbers, the state
    and the files are the same as without the callback, and `train_on_batch` isn't affected. With
    `all_reduce="per_window"`, the function that accumulates doesn't reduce over replicas. Each
    function is traced once, also over several calls of `fit` with the same callback.

    On TensorFlow, Python reads the counters of the window before each micro-batch. On JAX, Python
    keeps its own count and compares it with the counters at the end of each epoch. Eager PyTorch
    doesn't need two functions: on PyTorch, and with `accum_iters=1`, the callback does nothing.

    Raises:
        TypeError: At the start of training, if the model's optimizer isn't of this package.
        ValueError: At the start of training, if Python can't know whether a micro-batch closes the
            window: with `skip_nonfinite`, `skip_norm` or a LossScaleOptimizer, because only the
            device knows whether a micro-batch counts; with a function as `accum_iters`, which only
            the device computes (an AccumulationSchedule works); with `accum_iters=None`, because
            the caller closes the window; with `steps_per_execution` other than 1, because one
            function runs several micro-batches; with `ParameterServerStrategy`, because Python
            doesn't wait for the workers; in Keras's NNX mode on JAX. When a train step is traced
            that doesn't call the optimizer exactly once, or that calls `close_window`. On JAX, at
            the end of an epoch, if a train step called the optimizer only under some conditions.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AdamAccumulate, PythonGate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[PythonGate()])
    >>> model.optimizer.completed_updates
    1
    """

    _picker = None  # the Picker class of the host or backend, None if the callback does nothing
    _without_waiting = ()  # the class of strategies for whose workers Python doesn't wait

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        model = self.model
        optimizer = inner(model.optimizer)
        if self._picker is None or not optimizer._accumulation.options.accumulates:
            return
        if model.built and not model.trainable_variables:
            return  # without trainable variables, a train step doesn't call the optimizer
        if optimizer is not model.optimizer:
            self._refuse("a LossScaleOptimizer")
        if optimizer.skip_nonfinite:
            self._refuse("skip_nonfinite=True")
        if optimizer.skip_norm is not None:
            self._refuse("skip_norm")
        if optimizer.accum_iters is None:
            self._refuse("accum_iters=None")
        accum_iters = optimizer._accumulation.options.accum_iters
        if callable(accum_iters) and not isinstance(accum_iters, AccumulationSchedule):
            self._refuse("a function as accum_iters, which the device computes")
        if steps_per_execution(model) != 1:
            self._refuse(f"steps_per_execution={steps_per_execution(model)}")
        if isinstance(getattr(model, "distribute_strategy", None), self._without_waiting):
            self._refuse("ParameterServerStrategy")
        self._check_train_step()
        self._put_substitute(self._picker)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if isinstance(self.model.train_function, Picker):
            self.model.train_function.check()

    def _refuse(self, what):
        raise ValueError(
            f"PythonGate can't be used with {what}: Python must know before a micro-batch whether "
            "the micro-batch closes the window. Leave the callback out: the numbers are the same, "
            "and gate='conditional' of the optimizer is the next cheapest gate."
        )
