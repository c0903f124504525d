"""Batch normalization whose moving statistics are those of the window, on Keras 3.

`layer` has the layer, `step` the train step that tells it when a window closes, and this file the
callback that puts the train step in place.
"""

from keras_accum.callbacks.train_function import InTrainFunction
from keras_accum.callbacks.window_statistics.layer import (  # noqa: F401, public
    WindowBatchNormalization,
    layers_of,
    with_window_statistics,
)
from keras_accum.callbacks.window_statistics.step import Step, settle_between_steps
from keras_accum.convert import inner

_NO_LAYERS = (
    "WindowStatistics needs a model with layers WindowBatchNormalization: make it by "
    "with_window_statistics(model). Received: model={!r}"
)


class WindowStatistics(InTrainFunction):
    """Tell the layers WindowBatchNormalization of a model when a window closes.

    A layer moves its statistics in the train step in which the optimizer's number of updates rises,
    after the update, and when `apply_partial_window` closes a window. A micro-batch that the
    optimizer drops is dropped from the statistics. The train step has no conditional.
    `train_on_batch` isn't affected: there the layer raises an error.

    The model must be built, and can't be trained with MicroBatches.

    Example:

    >>> import numpy as np
    >>> {import_keras}
    >>> from keras_accum.{host} import AdamAccumulate, WindowStatistics, with_window_statistics
    >>> stock = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    >>> model = with_window_statistics(stock)
    >>> model.compile(optimizer=AdamAccumulate(accum_iters=5), loss="mse")
    >>> x = np.ones((50, 3))
    >>> history = model.fit(x, x, batch_size=10, verbose=0, callbacks=[WindowStatistics()])
    >>> round(float(model.layers[0].moving_mean[0]), 6)  # one update: 0.99 * 0 + 0.01 * 1
    0.01
    """

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        model, optimizer = self.model, self.model.optimizer
        layers = layers_of(model)
        if not layers:
            raise ValueError(_NO_LAYERS.format(model))
        is_unbuilt = not all(layer.built for layer in layers)
        advice = ": give the model an Input, or call it on a batch."
        self._refuse({"a model that isn't built": is_unbuilt}, advice)
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        inner(optimizer)._accumulation.closing_watchers[model] = settle_between_steps
        settle_between_steps(model, inner(optimizer))
        self.takes_part = True

    def around(self, train_step):
        return Step(self.model, train_step)
