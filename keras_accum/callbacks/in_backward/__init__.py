"""The callback `AccumulateInBackward`, on PyTorch; `torch` has the scope of `backward`."""

import contextlib

from keras_accum.callbacks.train_function import InTrainFunction
from keras_accum.convert import accumulating_in, inner

_NEEDS_TORCH = (
    "AccumulateInBackward needs the PyTorch backend of Keras 3, which runs eagerly and calls a "
    "hook for each gradient. On the other backends, a compiled program decides how long a gradient "
    "is kept. Leave the callback out: the numbers are the same."
)
CANT = "AccumulateInBackward can't be used with {}. Leave one of them out."


class AccumulateInBackward(InTrainFunction):
    """Add each gradient to its accumulator inside of `backward`, on PyTorch, and free it at once.

    Without this callback, `backward` makes all gradients of a micro-batch, and then the optimizer
    adds them to the accumulators. With the callback, a gradient g_i of a window's sum

        a_i <- a_i + g_i,    g_i <- none

    is added as soon as it is complete, while `backward` goes on. So the gradients never exist all
    at once, which saves one copy of the parameters. The update at the end of a window treats the
    variables in groups, so that its temporary tensors never exist all at once either; optimizers
    whose variables share state, such as Nadam, and those that aren't Keras's own make it as a
    whole. Weights, state and files are the same to the bit.

    In a loop of your own, `AccumulateInBackward.scope(optimizer)` does the same. With
    `accum_iters=1`, the callback does nothing. What needs all gradients of a micro-batch at once,
    or changes them before they are added, is refused by a ValueError: clip by the arguments of the
    optimizer. If a micro-batch ends with an error after `backward` has begun, the open window is
    dropped, with a warning.

    Example:

    {set_up}
    >>> from keras_accum.{host} import AccumulateInBackward, AdamAccumulate
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> is_torch = keras.backend.backend() == "torch"
    >>> callbacks = [AccumulateInBackward()] if is_torch else []
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=callbacks)
    >>> model.optimizer.completed_updates
    2
    """

    def __init__(self) -> None:
        super().__init__()
        self._check_backend()

    @classmethod
    def scope(cls, optimizer):
        """Return a scope in which `backward` adds gradients to the accumulators of an optimizer.

        The scope has one train step or many. Each calls `backward` once, and then the optimizer,
        which must be built, with `variable.value.grad` of each variable:

            with AccumulateInBackward.scope(optimizer):
                for x, y in batches:
                    loss_of(model(x), y).backward()
                    optimizer.apply([v.value.grad for v in variables], variables)

        Between the two, the window has a part of a micro-batch: don't read the state there, and
        don't close the window.
        """
        cls._check_backend()
        if inner(optimizer) is not optimizer:
            scales = "a LossScaleOptimizer, whose gradients are scaled when `backward` makes them"
            raise ValueError(CANT.format(scales))
        if accumulating_in(optimizer) != [optimizer]:
            raise TypeError(
                "`optimizer` must be an optimizer of keras_accum. "
                f"Received: optimizer={optimizer!r}"
            )
        if not optimizer._accumulation.options.accumulates:
            return contextlib.nullcontext()
        from keras_accum.callbacks.in_backward.torch import InBackward

        return InBackward(optimizer)

    @classmethod
    def _check_backend(cls):
        if cls.host.is_traced:
            raise ValueError(_NEEDS_TORCH)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self.model.jit_compile:
            raise ValueError(CANT.format("jit_compile=True"))
        self.takes_part = True

    def run(self, run, *arguments):
        with self.scope(self.model.optimizer):
            return run(*arguments)
