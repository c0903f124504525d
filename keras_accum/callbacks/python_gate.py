"""What the callback `PythonGate` does, for all hosts, and its docstring.

No host is imported here.
"""

import numpy as np

from keras_accum import window
from keras_accum.callbacks.base import (
    Substitute,
    SubstitutesTrainFunction,
    inner,
    own_train_function,
    steps_per_execution,
    train_step_of,
)


class PythonGate(SubstitutesTrainFunction):
    """Let Python pick, for each micro-batch of `fit`, one of two traced train functions.

    One only adds gradients to the accumulators, the other makes the update at the end of a window.
    No function has a conditional, and inside a window no update is computed: the cheapest
    micro-batch there is, where a `tf.distribute` strategy is, too. The numbers, the state and the
    files are the same as without it, and `train_on_batch` isn't touched. With
    `all_reduce="per_window"` the function that accumulates reduces nothing. Each function is traced
    once, also over several calls of `fit` with the same callback.

    On TensorFlow Python reads the counters of the window before each micro-batch; on JAX it reads
    them once an epoch and counts for itself. Eager PyTorch needs no such choice: there, and at
    `accum_iters=1`, the callback does nothing.

    Raises:
        TypeError: at the start of training, if the model's optimizer is none of keras_accum.
        ValueError: at the start of training, with `skip_nonfinite` or a LossScaleOptimizer, when
            only the device knows whether a micro-batch counts; with `steps_per_execution`
            other than 1, when several micro-batches are one function; with
            ParameterServerStrategy, when Python doesn't wait for workers; and when a train step
            of the model is traced that doesn't call the optimizer once. On JAX, at the end of an
            epoch, if a train step called it on some conditions only.

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

    _picker = None  # the class of the host or backend, if it needs one

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        model = self.model
        optimizer = inner(model.optimizer)
        if self._picker is None or not optimizer._accumulates:
            return
        if model.built and not model.trainable_variables:
            return  # a train step of such a model doesn't call its optimizer
        if optimizer is not model.optimizer:
            self._refuse("a LossScaleOptimizer")
        if optimizer.skip_nonfinite:
            self._refuse("skip_nonfinite=True")
        if steps_per_execution(model) != 1:
            self._refuse(f"steps_per_execution={steps_per_execution(model)}")
        if getattr(model, "_cluster_coordinator", None) is not None:
            self._refuse("ParameterServerStrategy")  # its workers are ahead of Python
        self._put_substitute(self._picker)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if isinstance(self.model.train_function, Picker):
            self.model.train_function.check()

    def _refuse(self, what):
        raise ValueError(
            f"PythonGate can't be used with {what}: Python must know before a micro-batch whether "
            "it closes the window. Leave the callback out: the numbers are the same, and "
            "gate='conditional' of the optimizer is the next cheapest."
        )


class Picker(Substitute):
    """In the place of a model's train function: two of them, of which Python picks one."""

    is_last = True

    def __init__(self, model, in_place_of):
        super().__init__(in_place_of)
        self._model, self._optimizer = model, model.optimizer
        self._functions = [own_train_function(model, self._checked) for _ in range(2)]

    def __call__(self, *arguments):
        position, length, next_length = self._before(arguments)
        step = window.advance(np, position, length, next_length, counted=1)
        checked = self._checked(self._model.train_step)  # Keras 2 looks for it when it traces
        with self._optimizer._deciding(bool(step.switch)), train_step_of(self._model, checked):
            results = self._functions[int(step.switch)](*arguments)
        self._keep([int(step.position), int(step.length), next_length], results)
        return results

    def _before(self, arguments):
        """Position, length and next length of the window that the train function will find."""
        return self._optimizer._count_window()

    def _keep(self, after, results):
        """Remember what the train function has left of the window, where that is of use."""

    def check(self):
        """Raise an error if the window isn't what it is remembered to be."""

    def _checked(self, train_step):
        """A train step that raises an error, when it is traced, unless it makes one micro-batch."""

        def checked_train_step(*arguments):
            before = self._optimizer._micro_batches_traced()
            result = train_step(*arguments)
            calls = self._optimizer._micro_batches_traced() - before
            if calls != 1:
                raise ValueError(f"{ONE_CALL} Received a train step that calls it {calls} times.")
            return result

        return checked_train_step


ONE_CALL = (
    "PythonGate needs a train step that calls the model's optimizer once, whatever happens in the "
    "step: it must be known before a micro-batch whether that closes the window. Leave the "
    "callback out."
)
