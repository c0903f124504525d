"""The callback `AccumulateInBackward`, for all hosts. No host is imported here."""

import contextlib

from keras_accum.base import inner
from keras_accum.callbacks.base import SubstitutesTrainFunction, accumulating_in
from keras_accum.slices import StepInSlices
from keras_accum.train_functions import Substitute

_NEEDS_TORCH = (
    "AccumulateInBackward needs the PyTorch backend of Keras 3, which runs eagerly and calls a "
    "hook for each gradient. On the other backends, a compiled program decides how long a gradient "
    "is kept. Leave the callback out: the numbers are the same."
)
_CANT = "AccumulateInBackward can't be used with {}. Leave one of them out."
_SCALES = (
    "a LossScaleOptimizer, whose gradients are scaled when `backward` makes them. This holds for "
    "its inner optimizer, too"
)


class AccumulateInBackward(SubstitutesTrainFunction):
    """Add each gradient to its accumulator inside of `backward`, on PyTorch, and free it at once.

    Without this callback, `backward` makes all gradients of a micro-batch, and then the optimizer
    adds them to the accumulators. With the callback, a gradient g_i of a window's sum

        a_i <- a_i + g_i,    g_i <- none

    is added as soon as it is complete, while `backward` goes on. So the gradients never exist all
    at once, which saves one copy of the parameters. The update at the end of a window treats the
    variables in groups, so that its temporary tensors never exist all at once either; optimizers
    whose variables share state, such as Nadam, and those that aren't Keras's own make it as a
    whole. Weights, state and files are the same to the bit.

    The callback is for `fit`, and `train_on_batch` isn't affected. In a loop of your own,
    `AccumulateInBackward.scope(optimizer)` does the same. List the callback last. With
    `accum_iters=1`, the callback does nothing.

    After `backward`, `variable.value.grad` is None, so code that reads or changes gradients between
    `backward` and the optimizer has nothing to see. Clip by the arguments of the optimizer.

    If a micro-batch ends with an error after `backward` has begun, the open window is dropped, with
    a warning. Without the callback, only the micro-batch would be lost.

    Raises:
        TypeError: At the start of training, if the model's optimizer isn't of this package.
        ValueError: If the backend isn't PyTorch. At the start of training, or in its first step,
            with what needs all gradients of a micro-batch at once, or changes them before they are
            added: `skip_nonfinite`, `skip_norm`, `reduction="weighted"`, a LossScaleOptimizer,
            `jit_compile=True`, MicroBatches, AccumulationMonitor with `noise_scale=True`, and
            `torch.distributed` with DistributedDataParallel. In a train step that calls `backward`
            twice before the optimizer, or that doesn't call the optimizer for a variable with a
            gradient.

    Warns:
        UserWarning: If an error in a micro-batch makes the open window be dropped.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AccumulateInBackward, AdamAccumulate
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((70, 3)), np.ones((70, 1))
    >>> callbacks = []
    >>> if keras.backend.backend() == "torch":
    ...     callbacks = [AccumulateInBackward()]
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=callbacks)
    >>> model.optimizer.completed_updates
    1
    """

    _in_backward = None  # the class of the scopes of a backend, None if the backend has none

    def __init__(self):
        super().__init__()
        self._check_backend()

    @classmethod
    def scope(cls, optimizer):
        """Return a scope in which `backward` adds gradients to the accumulators of an optimizer.

        The scope has one train step or many. Each train step calls `backward` once, and then the
        optimizer, with `variable.value.grad` of each variable. The optimizer must be built:
        `optimizer.build(model.trainable_variables)`. With `accum_iters=1`, the scope does nothing.

        Args:
            optimizer: An optimizer of this package, not one in a LossScaleOptimizer.

        Raises:
            TypeError: If the optimizer isn't of this package.
            ValueError: As the callback does. If the optimizer isn't built. At the end of the scope,
                if the optimizer wasn't called after the last `backward`.

        Example:

            with AccumulateInBackward.scope(optimizer):
                for x, y in batches:
                    loss_of(model(x), y).backward()
                    optimizer.apply([v.value.grad for v in variables], variables)
        """
        cls._check_backend()
        if inner(optimizer) is not optimizer:
            raise ValueError(_CANT.format(_SCALES))
        if accumulating_in(optimizer) != [optimizer]:
            raise TypeError(
                "`optimizer` must be an optimizer of keras_accum. "
                f"Received: optimizer={optimizer!r}"
            )
        if not optimizer._accumulation.options.accumulates:
            return contextlib.nullcontext()
        return cls._in_backward(optimizer)

    @classmethod
    def _check_backend(cls):
        if cls._in_backward is None:
            raise ValueError(_NEEDS_TORCH)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        model = self.model
        for what, refused in (
            (_SCALES, inner(model.optimizer) is not model.optimizer),
            ("jit_compile=True", model.jit_compile),
            ("MicroBatches", isinstance(vars(model).get("train_step"), StepInSlices)),
        ):
            if refused:
                raise ValueError(_CANT.format(what))
        self._put_substitute(lambda model, found: _InScope(model, found, self.scope))


class _InScope(Substitute):
    """A model's train function, each call in a scope of the optimizer."""

    last = "AccumulateInBackward"

    def __init__(self, model, in_place_of, scope):
        super().__init__(in_place_of)
        self._model, self._scope = model, scope

    def __call__(self, *arguments):
        with self._scope(self._model.optimizer):
            return self.in_place_of(*arguments)
