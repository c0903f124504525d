"""The callback `MicroBatches`, for all hosts. No host is imported here."""

from keras_accum.base import inner
from keras_accum.callbacks.base import SubstitutesTrainFunction
from keras_accum.train_functions import restore_train_step


class MicroBatches(SubstitutesTrainFunction):
    """Split each batch of `fit` inside the train step: the big batch in the memory of a slice.

    The memory is that of a slice and one sum of gradients; the training is that of the batch. `fit`
    counts batches: steps, progress bar, logs, schedules and callbacks are those of the batch. The
    optimizer may be any optimizer, of Keras or of this package. An optimizer with `accum_iters=5`
    makes an update every 5 batches.

    With `loss="sample"`, slice s has n_s of the batch's n samples, and the gradient is

        gradient = sum over s of (n_s / n) gradient of loss_s
        loss_s   = (n / n_s) sum of the losses of the slice / divisor of the batch + penalties_s

    The divisor is what Keras divides the loss of the whole batch by: the number of samples, of
    unmasked elements, or the sum of sample weights, for each output. So the sum is the gradient of
    the batch, whatever the slices' sizes and masks. A loss and a metric must have one value per
    sample, or per element of a sample, which doesn't depend on other samples.

    With `loss="batch"`, the model first runs on all slices without gradients. The loss of the
    joined outputs gives the gradient of the outputs. Then the model runs on each slice again, with
    the same dropout draws, and the chain rule gives the gradient of the batch:

        gradient = sum over s of (d outputs_s / d weights)^T (d loss / d outputs_s)
                                 + (n_s / n) gradient of penalties_s

    This is exact for any loss of `(y_true, y_pred)`, such as a contrastive loss, for one more
    forward pass. The joined outputs of the batch are kept in memory.

    The penalties are the losses that layers add. They count with the slice's share of the samples.
    This is exact for regularizers of weights, and for means over samples, as Keras's activity
    regularizers are. It is not exact if a layer adds a sum over samples: write it as a mean.

    Layers see slices. Batch normalization takes the moments of a slice, and moves its averages once
    a slice. Dropout draws for each slice. A callable metric sees slices with `loss="sample"`.

    On TensorFlow and JAX, equal slices run in a loop of the program. If outputs have masks, the
    divisors aren't known before the model runs: with `loss="sample"`, one more forward pass without
    gradients computes them, in inference mode. A gradient with sparse rows becomes a dense one.

    Args:
        size: Integer >= 1. The number of samples of a slice; under a strategy, on each replica.
        loss: "sample" (default) or "batch". What the loss is a function of.

    Raises:
        TypeError: If `size` isn't an integer.
        ValueError: If an argument is out of its range. At the start of training, or in its first
            step, if the training might not be that of the batch: with a `train_step`,
            `compute_loss` or `compute_metrics` of the model's own; with `reduction="weighted"` of
            the optimizer; with arrays that differ in their number of samples. With `loss="sample"`:
            if a loss or a metric makes one value of several samples, or if the loss has no
            reduction. With `loss="batch"`: if batch normalization trains.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import MicroBatches
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer="adam", loss="mse")
    >>> x, y = np.ones((100, 3)), np.ones((100, 1))
    >>> history = model.fit(x, y, batch_size=50, verbose=0, callbacks=[MicroBatches(10)])
    >>> int(model.optimizer.iterations)
    2
    """

    # A host defines: its class of models, and the class of train steps in slices.
    _models = _step_class = None
    _step = None

    def __init__(self, size, loss="sample"):
        super().__init__()
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(
                f"`size` must be an integer, the number of samples of a slice. Received: {size!r}"
            )
        if size < 1:
            raise ValueError(f"`size` must be at least 1. Received: size={size}")
        if loss not in ("sample", "batch"):
            raise ValueError(f'`loss` must be "sample" or "batch". Received: loss={loss!r}')
        self._size, self._loss = size, loss

    @property
    def size(self):
        """The number of samples of a slice."""
        return self._size

    def _check_optimizer(self, optimizer):
        """Take any optimizer."""

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        restore_train_step(self.model)  # after a training that was aborted
        self._check_model()
        if self._step is None or self._step.model is not self.model:
            self._step = self._step_class(self.model, self.size, self._loss)
        self._step.check()
        vars(self.model)["train_step"] = self._step
        self._put_substitute()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        restore_train_step(self.model)

    def _check_model(self):
        for name in ("train_step", "compute_loss", "compute_metrics"):
            own = getattr(type(self.model), name) is not getattr(self._models, name)
            if own or name in vars(self.model):
                self._refuse(f"a model that has its own `{name}`")
        if getattr(inner(self.model.optimizer), "reduction", None) == "weighted":
            self._refuse("an optimizer with reduction='weighted', whose weights are of batches")
        for variable in self.model.trainable_variables:
            if getattr(variable, "overwrite_with_gradient", False):
                self._refuse(f"{variable.name}, which is overwritten by its gradient")

    def _refuse(self, what):
        raise ValueError(
            f"MicroBatches can't be used with {what}: the training might differ from that of the "
            "whole batch. Leave the callback out, and use micro-batches as batches with an "
            "optimizer of keras_accum."
        )
