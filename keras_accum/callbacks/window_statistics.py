"""The callback `WindowStatistics`, for all hosts. No host is imported here."""

from keras_accum.base import inner
from keras_accum.callbacks.base import SubstitutesTrainStep
from keras_accum.slices import StepInSlices


class WindowStatistics(SubstitutesTrainStep):
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
            isn't built, with MicroBatches, or in Keras's NNX mode on JAX. In a train step, with
            `close_window` and `skip_nonfinite` or `skip_norm`.

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

    def _check_model(self):
        if isinstance(vars(self.model).get("train_step"), StepInSlices):
            self._refuse("MicroBatches, which takes the batch in slices")

    def _begin(self):
        step, optimizer = self._step, self.model.optimizer
        if not step.layers:
            raise ValueError(
                "WindowStatistics needs a model with layers WindowBatchNormalization: make it "
                f"by with_window_statistics(model). Received: model={self.model!r}"
            )
        if not all(layer.built for layer in step.layers):
            self._refuse("a model that isn't built: give the model an Input, or call it on a batch")
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        accumulation = inner(optimizer)._accumulation
        if step.settle_between_steps not in accumulation.closing_watchers:
            accumulation.closing_watchers.append(step.settle_between_steps)
        if accumulation.options.accumulates:
            step.settle_between_steps()

    def _refuse(self, what):
        raise ValueError(f"WindowStatistics can't be used with {what}.")
