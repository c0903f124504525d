"""The callback `WindowStatistics`, for all hosts. No host is imported here."""

from keras_accum.base import inner
from keras_accum.callbacks.base import SubstitutesTrainFunction
from keras_accum.slices import StepInSlices
from keras_accum.train_functions import restore_train_step


class WindowStatistics(SubstitutesTrainFunction):
    """Tell the layers WindowBatchNormalization of a model when a window closes.

    A layer moves its statistics in the train step in which the optimizer's number of updates rises,
    after the update, and when `apply_partial_window` closes a window. A micro-batch that the
    optimizer drops is dropped from the statistics. The train step has no conditional. The callback
    substitutes the train function while `fit` runs, so `train_on_batch` isn't affected: there the
    layer raises an error.

    List WindowStatistics before PythonGate.

    Raises:
        TypeError: At the start of training, if the model's optimizer isn't of this package.
        ValueError: At the start of training, if the model has no WindowBatchNormalization or
            isn't built, or with MicroBatches. In a train step, with `close_window` and
            `skip_nonfinite` or `skip_norm`.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AdamAccumulate, WindowStatistics, with_window_statistics
    >>> stock = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    >>> model = with_window_statistics(stock)
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x = np.ones((50, 3))
    >>> statistics = WindowStatistics()
    >>> history = model.fit(x, x, batch_size=10, verbose=0, callbacks=[statistics])
    >>> round(float(model.layers[0].moving_mean[0]), 6)  # one update: 0.99 * 0 + 0.01 * 1
    0.01
    """

    _step_class = None  # the host's class of train steps
    _step = None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        restore_train_step(self.model, self._step_class)  # after a training that was aborted
        model = self.model
        if isinstance(vars(model).get("train_step"), StepInSlices):
            self._refuse("MicroBatches, which takes the batch in slices")
        if self._step is None or self._step.model is not model:
            self._step = self._step_class(model)
        if not self._step.layers:
            raise ValueError(
                "WindowStatistics needs a model with layers WindowBatchNormalization: make it "
                f"by with_window_statistics(model). Received: model={model!r}"
            )
        accumulation = inner(model.optimizer)._accumulation
        if not all(layer.built for layer in self._step.layers):
            self._refuse("a model that isn't built: give the model an Input, or call it on a batch")
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        watchers = accumulation.closing_watchers
        if self._step.settle_between_steps not in watchers:
            watchers.append(self._step.settle_between_steps)
        if accumulation.options.accumulates:
            self._step.settle_between_steps()
        vars(model)["train_step"] = self._step
        self._put_substitute()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        restore_train_step(self.model, self._step_class)

    def _refuse(self, what):
        raise ValueError(f"WindowStatistics can't be used with {what}.")
