"""The callback `MicroBatches`, for all hosts. No host is imported here."""

from keras_accum import ranges
from keras_accum.base import inner
from keras_accum.callbacks.base import SubstitutesTrainStep, steps_per_execution


class MicroBatches(SubstitutesTrainStep):
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

    With "auto", the first slice is the whole batch. If a step runs out of memory, what it has
    changed is undone, and the same batch is taken again in slices of half the size, until they fit.
    No sample counts twice. The size that was found is printed and used from then on. If memory runs
    out while the optimizer updates the weights, a step can't be undone, and the training ends with
    a RuntimeError.

    The penalties are the losses that layers add. They count with the slice's share of the samples.
    This is exact for regularizers of weights, and for means over samples, as activity regularizers
    are in Keras 3.15. It is not exact if a layer adds a sum over samples: write it as a mean.

    Layers see slices. Batch normalization takes the moments of a slice, and moves its averages once
    a slice. Dropout draws for each slice. A callable metric sees slices with `loss="sample"`.

    On TensorFlow and JAX, equal slices run in a loop of the program. If outputs have masks, the
    divisors aren't known before the model runs: with `loss="sample"`, one more forward pass without
    gradients computes them, in inference mode. A gradient with sparse rows becomes a dense one.

    Args:
        size: Integer >= 1, or "auto". The number of samples of a slice; under a strategy, on each
            replica.
        loss: "sample" (default) or "batch". What the loss is a function of.

    Raises:
        TypeError: If `size` is neither an integer nor "auto".
        ValueError: If an argument is out of its range. At the start of training, or in its first
            step, if the training might not be that of the batch: with a `train_step`,
            `compute_loss` or `compute_metrics` of the model's own; with `reduction="weighted"` of
            the optimizer; with arrays that differ in their number of samples. With `loss="sample"`:
            if a loss or a metric makes one value of several samples, or if the loss has no
            reduction. With `loss="batch"`: if batch normalization trains. With "auto": if
            `steps_per_execution` isn't 1, or under a strategy with several replicas. In Keras's NNX
            mode on JAX.
        RuntimeError: With "auto", if memory runs out while the optimizer updates the weights.

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

    # A host defines: its class of models, and the methods of an optimizer by which Keras's train
    # step computes gradients, and a step in slices doesn't.
    _models = None
    _of_optimizer = ()

    def __init__(self, size, loss="sample"):
        super().__init__()
        if size != "auto" and (isinstance(size, bool) or not isinstance(size, int)):
            raise TypeError(
                '`size` must be an integer, the number of samples of a slice, or "auto". '
                f"Received: {size!r}"
            )
        if size != "auto" and size < 1:
            raise ValueError(f"`size` must be at least 1. Received: size={size}")
        if loss not in ("sample", "batch"):
            raise ValueError(f'`loss` must be "sample" or "batch". Received: loss={loss!r}')
        self._size, self._loss = size, loss

    @property
    def size(self):
        """The number of samples of a slice. With "auto", None while whole batches have fitted."""
        if self._size != "auto":
            return self._size
        return None if self._step is None else self._step.size

    def _check_optimizer(self, optimizer):
        """Take any optimizer."""

    def _new_step(self):
        return self._step_class(self.model, self._size, self._loss)

    def _begin(self):
        self._step.check()

    def _check_model(self):
        for name in ("train_step", "compute_loss", "compute_metrics"):
            if not hasattr(self._models, name):
                self._refuse(f"this version of Keras, whose models have no `{name}`")
            own = getattr(type(self.model), name) is not getattr(self._models, name)
            if own or name in vars(self.model):
                self._refuse(f"a model that has its own `{name}`")
        for optimizer in (self.model.optimizer, inner(self.model.optimizer)):
            for name in self._of_optimizer:
                if not _is_of_keras(type(optimizer), name):
                    self._refuse(f"an optimizer that has its own `{name}`")
        steps = steps_per_execution(self.model)
        if self._size == "auto" and steps != 1:
            self._refuse(f'"auto" and steps_per_execution={steps!r}, which takes several batches')
        if getattr(inner(self.model.optimizer), "reduction", None) == "weighted":
            self._refuse("an optimizer with reduction='weighted', whose weights are of batches")
        # A model of tf_keras that is not built has no list of variables, and never such variables.
        for variable in self.model.trainable_variables if self.model.built else ():
            if getattr(variable, "overwrite_with_gradient", False):
                self._refuse(f"{variable.name}, which is overwritten by its gradient")

    def _refuse(self, what):
        raise ValueError(
            f"MicroBatches can't be used with {what}: the training might differ from that of the "
            "whole batch. Leave the callback out, and use micro-batches as batches with an "
            "optimizer of keras_accum."
        )


def _is_of_keras(cls, name):
    """Whether the class that defines this method, if there is one, is Keras's own."""
    found = next((base for base in cls.__mro__ if name in vars(base)), None)
    return found is None or ranges.is_of_keras(found)
