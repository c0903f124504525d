"""The callback `OnUpdates`, for all hosts. No host is imported here."""

import math
import numbers

from keras_accum.base import inner
from keras_accum.callbacks.base import KnowsOthers, SeesTrainings, is_named, steps_per_execution
from keras_accum.callbacks.monitor import LOGGED


class OnUpdates(KnowsOthers, SeesTrainings):
    """Call other callbacks once per update, as `fit` at the big batch would call them.

    The callbacks in the list get `on_train_batch_begin` before the first micro-batch of a window,
    and `on_train_batch_end` after the update. The number that they get is that of the update in its
    epoch, from 0. So ModelCheckpoint with an integer `save_freq`, TensorBoard with an integer
    `update_freq`, a learning rate by step, and callbacks of your own count updates. The hooks for
    epochs, validation and prediction are handed on as they are.

    The metrics of Keras's train step are means since the start of the epoch, weighted by samples.
    At the end of a window, their values are therefore the logs of the big batch:

        log(update) = sum over samples since the start of the epoch / number of samples

    This is exact also for short micro-batches. The loss of masked samples is different: Keras
    averages it over the unmasked elements of a micro-batch, and then by the number of samples. A
    log of a train step of your own that isn't the value of one of the model's metrics is the mean
    over the micro-batches of the window.

    `params["steps"]` is the number of updates in an epoch. It is None if epochs may differ in that
    number: if windows vary in length, or go on in the next epoch. A window that goes on in the next
    epoch begins with its number in the first epoch and ends as update 0 of the second epoch, with
    the logs of the second epoch.

    List ApplyPartialWindow before OnUpdates. Callbacks of this package count micro-batches: list
    them beside OnUpdates, and AccumulationMonitor before it. OnUpdates reads the counters of the
    optimizer after each micro-batch, for which JAX waits for the device.

    Args:
        callbacks: List of callbacks of Keras. What the training calls once per update.

    Raises:
        TypeError: If `callbacks` isn't a list of callbacks, or has one of this package. At the
            start of training, if the model's optimizer isn't of this package.
        ValueError: On `tf_keras`, if a callback counts micro-batches by itself: TensorBoard with an
            integer `update_freq`, BackupAndRestore with an integer `save_freq`. At the start of
            training, if ApplyPartialWindow comes after OnUpdates, or with `steps_per_execution`
            other than 1, because one call of the train function may then end inside a window.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AdamAccumulate, OnUpdates
    >>> said = keras.callbacks.LambdaCallback(
    ...     on_train_batch_end=lambda update, logs: print("update", update, sorted(logs))
    ... )
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x, y = np.ones((100, 3)), np.ones((100, 1))
    >>> history = model.fit(x, y, batch_size=10, verbose=0, callbacks=[OnUpdates([said])])
    update 0 ['loss']
    update 1 ['loss']
    """

    # A host defines: its classes of callbacks and of models, and a function that returns why a
    # callback can't count updates, or None.
    _kind = _models = None
    _refusal = staticmethod(lambda callback: None)

    # The number of completed updates that the callbacks know of, None if no training runs.
    _updates = None

    def __init__(self, callbacks):
        super().__init__()
        if not isinstance(callbacks, (list, tuple)):
            raise TypeError(f"`callbacks` must be a list of callbacks. Received: {callbacks!r}")
        for callback in callbacks:
            self._check(callback)
        self._callbacks = list(callbacks)

    @property
    def callbacks(self):
        """The callbacks that are called once per update."""
        return list(self._callbacks)

    def _check(self, callback):
        if not isinstance(callback, self._kind):
            raise TypeError(
                "`callbacks` must have callbacks of the Keras of the model, and not their classes: "
                f"instances of {self._kind.__module__}.{self._kind.__name__}. "
                f"Received: {callback!r}"
            )
        if isinstance(callback, SeesTrainings):
            raise TypeError(
                f"{type(callback).__name__} counts micro-batches, so it can't be in OnUpdates: "
                f"list it beside OnUpdates in `callbacks` of `fit`. Received: {callback!r}"
            )
        refusal = self._refusal(callback)
        if refusal is not None:
            raise ValueError(f"{type(callback).__name__} can't be in OnUpdates: {refusal}")

    # -- the training ------------------------------------------------------------------------------

    def set_model(self, model):
        super().set_model(model)
        self._call("set_model", model)

    def set_params(self, params):
        super().set_params(params)
        self._call("set_params", params)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if any(is_named(callback, "ApplyPartialWindow") for callback in self._after):
            raise ValueError(
                "ApplyPartialWindow must come before OnUpdates in `callbacks`: otherwise its "
                "update would come after the end of the epoch."
            )
        steps = steps_per_execution(self.model)
        if steps != 1:
            raise ValueError(
                "OnUpdates must see each micro-batch, because a call of the train function may end "
                "inside a window. Compile with steps_per_execution=1. "
                f"Received: steps_per_execution={steps}"
            )
        own = type(self.model).train_step is not self._models.train_step
        self._window = _Window(self.model if own else None)
        self._updates, self._is_open = None, False
        self._call("set_params", {**(self.params or {}), "steps": self._updates_in_an_epoch()})
        self._call("on_train_begin", logs)

    def _updates_in_an_epoch(self):
        """Return the number of updates in each epoch, None if epochs may differ."""
        optimizer = inner(self.model.optimizer)
        steps, length = (self.params or {}).get("steps"), optimizer.accum_iters
        others = [*self._before, *self._after]
        varies = optimizer._accumulation.options.is_scheduled or any(
            is_named(callback, name)
            for callback in others
            for name in ("AccumulateByEpoch", "GrowWithNoiseScale")
        )
        if steps is None or length is None or varies or optimizer.window_position:
            return None
        closes = any(is_named(callback, "ApplyPartialWindow") for callback in self._before)
        return math.ceil(steps / length) if closes or steps % length == 0 else None

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self._see_update()
        self._updates = None
        self._call("on_train_end", logs)

    def on_epoch_begin(self, epoch, logs=None):
        if self._updates is None:  # now, because a callback may restore a state when fit begins
            self._updates = self._completed_updates()
        self._see_update()
        self._number = 0
        self._call("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self._see_update()
        self._call("on_epoch_end", epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        self._see_update()
        if not self._is_open:
            self._is_open = True
            self._call("on_train_batch_begin", self._number, logs)

    def on_train_batch_end(self, batch, logs=None):
        self._window.add(logs or {})
        self._see_update()

    def _completed_updates(self):
        return inner(self.model.optimizer).completed_updates

    def _see_update(self):
        """Tell the callbacks of an update that was made since the last look."""
        if self._updates is None:
            return
        updates = self._completed_updates()
        is_new, self._updates = updates > self._updates, updates
        if is_new and self._is_open:
            self._is_open = False
            number, self._number = self._number, self._number + 1
            self._call("on_train_batch_end", number, self._window.take())

    def _call(self, hook, *arguments):
        for callback in self._callbacks:
            getattr(callback, hook)(*arguments)

    # -- validation and prediction -----------------------------------------------------------------

    def on_test_begin(self, logs=None):
        self._see_update()
        self._call("on_test_begin", logs)

    def on_test_end(self, logs=None):
        self._call("on_test_end", logs)

    def on_test_batch_begin(self, batch, logs=None):
        self._call("on_test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._call("on_test_batch_end", batch, logs)

    def on_predict_begin(self, logs=None):
        self._call("on_predict_begin", logs)

    def on_predict_end(self, logs=None):
        self._call("on_predict_end", logs)

    def on_predict_batch_begin(self, batch, logs=None):
        self._call("on_predict_batch_begin", batch, logs)

    def on_predict_batch_end(self, batch, logs=None):
        self._call("on_predict_batch_end", batch, logs)


class _Window:
    """The logs of the open window.

    model: a model with a train step of its own, whose logs may be no metrics; else None.
    """

    def __init__(self, model):
        self._model = model
        self._logs = []

    def add(self, logs):
        if self._model is None:
            self._logs.clear()
        self._logs.append(dict(logs))

    def take(self):
        """Return the logs of the update, and begin the next window."""
        logs, self._logs = self._logs, []
        return {name: self._of_window(name, value, logs) for name, value in logs[-1].items()}

    def _of_window(self, name, value, logs):
        is_number = isinstance(value, numbers.Real)
        if self._model is None or name in LOGGED or not is_number or self._is_metric(name, value):
            return value
        return sum(log[name] for log in logs) / len(logs)

    def _is_metric(self, name, value):
        model = self._model
        if hasattr(model, "get_metrics_result"):
            metrics = model.get_metrics_result()
        else:  # before TensorFlow 2.9
            metrics = {metric.name: metric.result() for metric in model.metrics}
        return name in metrics and math.isclose(metrics[name], value, rel_tol=1e-5)
