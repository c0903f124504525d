"""The callback `MicroBatches`, for Keras 3 only.

`step` is the train step in slices, and `passes` has its two ways to gradients. `outputs` joins the
outputs of slices, `metrics` puts their logs together, and `halving` finds a size that fits. `jax`,
`tensorflow` and `torch` loop over slices. `private_members` lists Keras's private members.
"""

from __future__ import annotations

import importlib
from typing import Literal, NoReturn

import keras

from keras_accum.engine.optimizers import list_accumulating
from keras_accum.fit.train_function import InTrainFunction
from keras_accum.host import find_own_methods
from keras_accum.keras3.micro_batches import private_members
from keras_accum.schedule import MOST, read_count

BackendStep = importlib.import_module(f"{__name__}.{keras.backend.backend()}").BackendStep

_MIGHT_DIFFER = (
    ": results might differ from the whole batch. Leave the callback out, and train on "
    "micro-batches with an optimizer of keras_accum."
)
_LEAVE_OUT = (
    ", which adds up batches: an update would see several. Leave the callback out, or compile with "
    "an optimizer that updates with each batch."
)
_AS_ONE = (
    ": nothing is known about its samples. Use MicroBatches(size, loss='batch'), which calls it "
    "once, with the joined outputs of the slices."
)
_OWN = "a model that has its own `{}`"


class MicroBatches(InTrainFunction):
    """Split each batch in `fit` into slices, to train on the big batch in less memory.

    It takes the memory for one slice and one sum of gradients. Steps, progress bar, logs, schedules
    and callbacks count batches. Use any optimizer that updates with each batch. On TensorFlow, the
    gradient rows of an embedding are kept for the whole batch, so the optimizer gets the same rows.

    By default, slice s counts with weight w_s, the number that its loss is divided by: samples,
    or the elements that aren't masked or ignored, or the sum of sample weights:

        gradient = sum_s w_s d loss_s / d weights / sum_s w_s
        loss_s   = mean loss on slice s + penalties_s

    Losses and metrics must have one value per sample or element for this; a Metric subclass may
    also add up what it divides in `result`. Otherwise, the loss is computed for the whole batch, as
    with `loss="batch"`, and a line says so: for your own loss or `compute_loss`, for several losses
    with different masks, or a loss that returns a scalar. If two passes can't be used, as with
    batch normalization, slices count by their samples, and `fit` warns. `loss="sample"` raises a
    ValueError in place of a second pass, and takes your word that each value of your own loss is of
    one sample. Your own metrics get each slice, as Keras gives them each batch.

    With `loss="batch"`, known as GradCache, the model first runs on all slices without gradients.
    The loss on the joined outputs, kept in memory, gives their gradient. Then the model runs on
    each slice again. Layers draw the same numbers, if by `keras.random`, NumPy or PyTorch's default
    generator; you get a ValueError for `tf.random`. At the price of a second forward pass, this is
    exact for any loss and metric on `(y_true, y_pred)`, such as a contrastive loss, and for your
    model's own `compute_loss` if it doesn't call the model. Both may read weights, but no tensor
    that a layer keeps when it is called: let the model return it. With PyTorch's
    DistributedDataParallel, it's the loss of one process's samples:

        gradient = sum_s (d outputs_s / d weights)^T (d loss / d outputs_s)
                         + (n_s / n) d penalties_s / d weights
                   + d loss / d weights, with the outputs held fixed

    With "auto", the whole batch is tried first. If a step runs out of memory, it is undone and
    retried in halves until it fits. The size is printed and kept. On JAX, which deletes the state
    when a step starts, the first batch of each shape in a training keeps a copy of it on the host.
    If a later one runs out of memory, because something else took it, the weights are lost: you get
    an error that says to load your last checkpoint.

    Penalties are the losses that layers add; they should be means over samples, as in Keras. Batch
    normalization uses the moments of a slice and moves its averages once per slice: `fit` warns. It
    also warns of metrics that layers update with values of a slice. If your results might differ
    from the whole batch in other ways, or if the optimizer adds up batches, you get a ValueError.

    Args:
        size: Integer >= 1, or "auto" (default). The number of samples per slice. On JAX, a slice is
            for all devices together, so use a multiple of their number; on TensorFlow, it is for
            one replica.
        loss: "auto" (default), "sample" or "batch": whether the loss is computed per slice, in one
            pass, or per batch, in two.

    Example:

    {set_up}
    >>> from keras_accum.{module} import MicroBatches
    >>> model.compile(optimizer="adam", loss="mse")
    >>> history = model.fit(x, y, batch_size=50, verbose=0, callbacks=[MicroBatches(10)])
    >>> int(model.optimizer.iterations)
    2
    """

    _step = None

    def __init__(
        self,
        size: int | Literal["auto"] = "auto",
        loss: Literal["auto", "sample", "batch"] = "auto",
        **others: NoReturn,
    ) -> None:
        super().__init__()
        if others:
            raise TypeError(
                "MicroBatches takes `size`, the number of samples per slice, and `loss`. "
                f"Received: {others}"
            )
        if size != "auto":
            count = read_count(size, -MOST)
            if count is None:
                raise TypeError(f'`size` must be an integer or "auto". Received: size={size!r}')
            if count < 1:
                raise ValueError(f"`size` must be at least 1. Received: size={size}")
            size = count
        if loss not in ("auto", "sample", "batch"):
            raise ValueError(f'`loss` must be "auto", "sample" or "batch". Received: loss={loss!r}')
        self._size, self._loss = size, loss

    @property
    def size(self) -> int | None:
        """The number of samples per slice. With "auto", None while whole batches fit."""
        if self._size != "auto":
            return self._size
        return None if self._step is None else self._step.size

    version = size  # one trace per size

    @property
    def loss(self) -> str:
        """The argument; "batch" once "auto" has found that slices aren't enough."""
        return self._loss if self._step is None else self._step.loss

    @property
    def compiles_itself(self):
        return self._step.compiles_itself

    @property
    def in_slices(self):
        """True if any batch was larger than a slice."""
        return self._step is not None and self._step.in_slices

    @property
    def metrics_of_slices(self):
        """The names of metrics that layers have updated with values of a slice."""
        return sorted(self._step.of_slices) if self._step is not None else []

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        private_members.check_members_of(self.model)
        self._check_model()
        if self._step is None or not self._step.fits(self.model):
            self._step = BackendStep(self.model, self._size, self._loss, self.host)
        self._step.begin_training()
        self.takes_part = True

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._step.end()

    def around(self, train_step):
        return self._step

    def run(self, run, *arguments):
        if self._size == "auto":
            return self._step.run_in_halves(run, *arguments)
        return run(*arguments)

    def _check_optimizer(self, optimizer):
        """Accept any optimizer but one that adds up batches, Keras's or ours."""
        adding = [o for o in list_accumulating(self.model) if o._accumulation.options.accumulates]
        parts = optimizer, *getattr(optimizer, "optimizers", ())  # of a MultiOptimizer
        adding += [o for o in parts if getattr(o, "gradient_accumulation_steps", None)]
        self._refuse({type(one).__name__: True for one in adding}, _LEAVE_OUT)

    def _check_model(self):
        """Raise an error if results might differ from the whole batch."""
        model = self.model
        steps = model.steps_per_execution
        own = find_own_methods(model, keras.Model, "train_step", "compute_metrics")
        obstacles = {_OWN.format(name): True for name in own}
        obstacles[f'"auto" and steps_per_execution={steps}'] = self._size == "auto" and steps != 1
        for layer in model._flatten_layers():
            text = f"the stateful layer {layer.name}, whose states belong to batches"
            obstacles[text] = self.host.is_stateful(layer)
        for variable in model.trainable_variables:  # such as float8 scales
            is_overwritten = variable.overwrite_with_gradient
            obstacles[f"{variable.name}, which is overwritten by its gradient"] = is_overwritten
        self._refuse(obstacles, _MIGHT_DIFFER)
        if self._loss == "sample":
            own = find_own_methods(model, keras.Model, "compute_loss")
            self._refuse({_OWN.format(name): True for name in own}, _AS_ONE)
