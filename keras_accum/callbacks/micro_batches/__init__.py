"""The callback `MicroBatches`, and its train steps. For Keras 3 alone.

`step` has a train step in slices, `losses` the losses of a slice, and `halving` what is undone.
`jax`, `tensorflow` and `torch` have the loop over slices.
"""

from __future__ import annotations

import importlib
from typing import Literal

import keras

from keras_accum.callbacks.base import find_own_methods
from keras_accum.callbacks.train_function import InTrainFunction
from keras_accum.convert import accumulates, inner

# A train step in slices, on the backend that is in use.
Step = importlib.import_module(f"{__name__}.{keras.backend.backend()}").Step

_MIGHT_DIFFER = (
    ": the training might differ from that of the whole batch. Leave the callback out, and use "
    "micro-batches as batches with an optimizer of keras_accum."
)


class MicroBatches(InTrainFunction):
    """Split each batch of `fit` inside the train step: the big batch in the memory of a slice.

    The memory is that of a slice and one sum of gradients; the training is that of the batch. `fit`
    counts batches: steps, progress bar, logs, schedules and callbacks are those of the batch. The
    optimizer may be any optimizer, of Keras or of this package. On TensorFlow, the optimizer gets
    the rows of an embedding's gradient that it gets of the whole batch, which are kept in memory.

    With `loss="sample"`, slice s has n_s of the batch's n samples, and the gradient is

        gradient = sum over s of (n_s / n) gradient of loss_s
        loss_s   = mean of the losses of the slice + penalties_s

    A loss and a metric must have one value per sample, or per element of a sample. Refused by a
    ValueError are values that depend on other samples, which is tried on a few made-up samples, and
    a mean that isn't over all samples: of an output or a loss with a mask, and of
    `reduction="mean_with_sample_weight"` with sample weights. Use `loss="batch"` there.

    With `loss="batch"`, the model first runs on all slices without gradients. The loss of the
    joined outputs, which are kept in memory, gives their gradient. Then the model runs on each
    slice again, with the same dropout draws. This is exact for any loss of `(y_true, y_pred)`, such
    as a contrastive loss, for one more forward pass:

        gradient = sum over s of (d outputs_s / d weights)^T (d loss / d outputs_s)
                                 + (n_s / n) gradient of penalties_s

    With "auto", the first slice is the whole batch. If a step runs out of memory, what it has
    changed is undone, and the same batch is taken again in slices of half the size, until they fit.
    The size that was found is printed and used from then on.

    The penalties are the losses that layers add, which should be means over samples, as in Keras.
    Layers see slices: batch normalization takes the moments of a slice, and moves its averages once
    a slice. A training that might not be that of the batch is refused by a ValueError.

    Args:
        size: Integer >= 1, or "auto" (default). The number of samples of a slice; under a strategy,
            on each replica.
        loss: "sample" (default) or "batch". What the loss is a function of.

    Example:

    {set_up}
    >>> from keras_accum.{host} import MicroBatches
    >>> model.compile(optimizer="adam", loss="mse")
    >>> history = model.fit(x, y, batch_size=50, verbose=0, callbacks=[MicroBatches(10)])
    >>> int(model.optimizer.iterations)
    2
    """

    replaces = True
    _step = None

    def __init__(
        self,
        size: int | Literal["auto"] = "auto",
        loss: Literal["sample", "batch"] = "sample",
    ) -> None:
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
    def size(self) -> int | None:
        """The number of samples of a slice. With "auto", None while whole batches have fitted."""
        if self._size != "auto":
            return self._size
        return None if self._step is None else self._step.size

    version = size  # for each size, there is a trace

    @property
    def in_slices(self):
        """True if a batch was larger than a slice."""
        return self._step is not None and self._step.in_slices

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._check_model()
        if self._step is None or self._step.model is not self.model:
            self._step = Step(self.model, self._size, self._loss)
        self._step.check()
        self.takes_part = True

    def around(self, train_step):
        return self._step

    def run(self, run, *arguments):
        if self._size == "auto":
            return self._step.run_in_halves(run, *arguments)
        return run(*arguments)

    def _check_optimizer(self, optimizer):
        """Take any optimizer."""

    def _check_model(self):
        """Raise an error if a training in slices might differ from that of the whole batch."""
        model, optimizer = self.model, inner(self.model.optimizer)
        steps = model.steps_per_execution
        own = find_own_methods(model, keras.Model, "train_step", "compute_loss", "compute_metrics")
        found = {f"a model that has its own `{name}`": True for name in own}
        found[f'"auto" and steps_per_execution={steps}'] = self._size == "auto" and steps != 1
        weighs = accumulates(optimizer) and optimizer.reduction == "weighted"
        found["an optimizer with reduction='weighted', whose weights are of batches"] = weighs
        for layer in model._flatten_layers():
            is_stateful = isinstance(layer, keras.layers.RNN) and layer.stateful
            found[f"the stateful layer {layer.name}, whose states are of batches"] = is_stateful
        for variable in model.trainable_variables:  # such as the scales of float8
            is_overwritten = variable.overwrite_with_gradient
            found[f"{variable.name}, which is overwritten by its gradient"] = is_overwritten
        self._refuse(found, _MIGHT_DIFFER)
