"""Batch normalization whose moving statistics are those of the window."""

import contextlib

import keras
from keras import ops

_WITHOUT_CALLBACK = (
    "{0} trains only with the callback WindowStatistics, which moves the statistics when a window "
    "closes: model.fit(..., callbacks=[WindowStatistics()]). In a loop of your own, use "
    "keras.layers.BatchNormalization. Received: layer {1!r} with training=True"
)
_REFUSED = (
    "`{0}` must be False: the statistics of a window are pooled from the plain moments of each "
    "micro-batch on its replica. Use keras.layers.BatchNormalization. Received: {0}={1!r}"
)
_LEFT = (
    "`model` has batch normalization that can't be swapped, because only layers of functional and "
    "Sequential models can be: inside other layers and subclassed models, and for subclasses of "
    "BatchNormalization, use WindowBatchNormalization where the layer is made. Received: {}"
)

_WINDOW = "window_count", "window_mean", "window_variance"


def _check(layer):
    """Raise a ValueError if a layer of batch normalization can't pool its statistics."""
    for name in ("renorm", "synchronized"):
        if getattr(layer, name, False):
            raise ValueError(_REFUSED.format(name, getattr(layer, name)))


@keras.saving.register_keras_serializable(package="keras_accum")
class WindowBatchNormalization(keras.layers.BatchNormalization):
    """Normalize by the micro-batch, as the stock layer does, and move the statistics by the window.

    Accumulation can't normalize by the big batch: what a micro-batch is divided by is known before
    the next one is seen. But the moving statistics, by which the layer normalizes in inference, can
    be those of the big batch. They move once per update, to the pooled moments of everything that
    the layer saw in the window. With n_i elements of mean m_i and variance v_i in micro-batch i:

        n        = sum of n_i
        mean     = sum of n_i m_i / n
        variance = sum of n_i (v_i + (m_i - mean)^2) / n
        moving mean     <- momentum moving mean     + (1 - momentum) mean
        moving variance <- momentum moving variance + (1 - momentum) variance

    The sums are updated micro-batch by micro-batch, without cancellation (Chan, Golub and LeVeque,
    1979). Where the layer's inputs don't depend on batch normalization before it, the moving
    statistics are those of the stock layer at the big batch, up to rounding. The mean of the
    variances, which the stock layer converges to, leaves out (m_i - mean)^2 and is too small.

    The callback WindowStatistics tells the layer when a window closes, from the counters of the
    optimizer. With `accum_iters=1`, the layer is the stock layer, to the bit. The open window is
    part of the layer's weights, so files continue in its middle.

    Under MirroredStrategy, each replica has its own statistics, as with the stock layer, and those
    of the first replica are saved.

    Args:
        args, kwargs: The arguments of `keras.layers.BatchNormalization`, without `renorm` and
            `synchronized`.

    Raises:
        ValueError: With `renorm=True` or `synchronized=True`. When the layer is called in training
            without the callback WindowStatistics.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> from keras_accum.keras3 import (
    ...     WindowBatchNormalization, SGDAccumulate, WindowStatistics
    ... )
    >>> layer = WindowBatchNormalization(momentum=0.0)
    >>> model = keras.Sequential([keras.Input((1,)), layer])
    >>> model.compile(optimizer=SGDAccumulate(accum_iters=2), loss="mse")
    >>> x = np.array([[0.0], [2.0], [4.0], [6.0]])
    >>> statistics = WindowStatistics()
    >>> history = model.fit(x, x, batch_size=2, shuffle=False, verbose=0, callbacks=[statistics])
    >>> float(layer.moving_mean[0]), float(layer.moving_variance[0])  # of all four samples
    (3.0, 5.0)
    """

    # What a train step does with the moments of a micro-batch: they are "pooled", or the
    # statistics are "moved" as by the stock layer; None outside of a step of WindowStatistics.
    _moments_are = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        _check(self)

    def build(self, input_shape):
        super().build(input_shape)
        for name in _WINDOW:
            variable = self.add_weight(
                name=name,
                shape=self.moving_mean.shape,
                dtype=keras.backend.result_type(self.variable_dtype, "float32"),
                initializer="zeros",
                trainable=False,
                autocast=False,
            )
            setattr(self, name, variable)

    def call(self, inputs, training=None, mask=None):
        if not (training and self.trainable) or self._moments_are == "moved":
            return super().call(inputs, training=training, mask=mask)
        if self._moments_are is None:
            raise ValueError(_WITHOUT_CALLBACK.format(type(self).__name__, self.name))
        # The stock code moves the statistics by the micro-batch: that is taken back.
        moving = self.moving_mean, self.moving_variance
        before = [ops.copy(variable) for variable in moving]
        outputs = super().call(inputs, training=training, mask=mask)
        for variable, value in zip(moving, before):
            variable.assign(value)
        return outputs

    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        if self._moments_are == "pooled":
            self._pool(mean, variance, self._count(inputs, mask))
        return mean, variance

    def _count(self, inputs, mask):
        """Return the number of elements of each channel of which a micro-batch has the moments."""
        if mask is not None:
            shown = ops.broadcast_to(ops.expand_dims(mask, axis=-1), ops.shape(inputs))
            return ops.sum(ops.cast(shown, self.window_count.dtype), self._reduction_axes)
        shape, count = ops.shape(inputs), 1.0
        for axis in self._reduction_axes:
            count = count * ops.cast(shape[axis], self.window_count.dtype)
        return ops.broadcast_to(count, self.window_count.shape)

    def _pool(self, mean, variance, count):
        """Add the moments of a micro-batch to those of the window."""

        def plain(value):
            value = ops.cast(ops.stop_gradient(value), self.window_mean.dtype)
            return ops.reshape(value, self.window_mean.shape)

        old_count, old_mean, old_variance = map(ops.convert_to_tensor, self._window)
        total = old_count + count
        share = ops.where(total > 0, count / ops.maximum(total, 1), 0)
        apart = plain(mean) - old_mean
        within = old_variance + (plain(variance) - old_variance) * share
        self.window_count.assign(total)
        self.window_mean.assign(old_mean + apart * share)
        self.window_variance.assign(within + ops.square(apart) * share * (1 - share))

    # -- what WindowStatistics calls ---------------------------------------------------------------

    @property
    def _window(self):
        return [getattr(self, name) for name in _WINDOW]

    def copy_of_window(self):
        """Return the values of the open window, which later writes don't change."""
        return [ops.copy(variable) for variable in self._window]

    def settle(self, before, counted, closed):
        """Move the statistics if the train step `closed` the window, and empty the window.

        If the micro-batch of the train step isn't `counted`, the window is what it was `before`.
        """
        after = map(ops.convert_to_tensor, self._window)
        count, *pooled = [ops.where(counted, *values) for values in zip(after, before)]
        moves = ops.logical_and(closed, count > 0)
        for variable, value in zip((self.moving_mean, self.moving_variance), pooled):
            old = ops.cast(variable, value.dtype)
            moved = old * self.momentum + value * (1 - self.momentum)
            variable.assign(ops.where(moves, moved, old))
        for variable, value in zip(self._window, [count, *pooled]):
            variable.assign(ops.where(closed, 0, value))


@contextlib.contextmanager
def moments_are(what, layers):
    """A scope in which the layers let moments be "pooled" or "moved"."""
    for layer in layers:
        layer._moments_are = what
    try:
        yield
    finally:
        for layer in layers:
            layer._moments_are = None


def layers_of(model):
    """Return the layers of a model that pool their statistics."""
    return [
        layer for layer in model._flatten_layers() if isinstance(layer, WindowBatchNormalization)
    ]


def with_window_statistics(model):
    """Return a copy of a model with WindowBatchNormalization for each BatchNormalization.

    The copy has the weights of the model. Compile the copy, with an optimizer of its own. Load a
    file of the stock model before this call. Files of the copy load as those of any model, after
    `import keras_accum.keras3` or with `custom_objects`.

    Args:
        model: Functional or Sequential model, also with such models as layers.

    Raises:
        ValueError: If batch normalization is left: inside a layer or a model of another kind, or as
            a subclass of BatchNormalization. If a layer has `renorm` or `synchronized`.

    Example:

    >>> import keras
    >>> from keras_accum.keras3 import with_window_statistics
    >>> stock = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    >>> type(with_window_statistics(stock).layers[0]).__name__
    'WindowBatchNormalization'
    """
    copy = keras.models.clone_model(model, clone_function=_swapped, recursive=True)
    stock = [
        layer.name
        for layer in copy._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and not isinstance(layer, WindowBatchNormalization)
    ]
    if stock:
        raise ValueError(_LEFT.format(f"layers {stock}"))
    _copy_weights(model, copy)
    return copy


def _swapped(layer):
    """Return a copy of a layer without its weights."""
    cls = type(layer)
    if cls is keras.layers.BatchNormalization:
        _check(layer)  # here, because `from_config` would make it a TypeError
        cls = WindowBatchNormalization
    return cls.from_config(layer.get_config())


def _copy_weights(source, target):
    if isinstance(target, keras.Model) and layers_of(target):
        for pair in zip(source.layers, target.layers):
            _copy_weights(*pair)
    else:  # the stock layer's weights are the first of ours
        for old, new in zip(source.weights, target.weights):
            new.assign(old)
