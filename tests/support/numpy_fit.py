"""A `fit` of NumPy arrays: what `keras_accum.fit` needs of a Keras, for `numpy_keras`.

A model is one dense layer without an activation, `y_pred = x @ w`, and its losses know their
derivatives. As in Keras, `fit` calls the model's train function for each batch, and the methods of
a CallbackList around it.
"""

import types

import numpy as np
from numpy_keras import Variable

from keras_accum.callbacks import apply_partial_window, micro_batch_weights
from keras_accum.fit.training import look_at_trainings
from keras_accum.fit.weighing import look_at_train_on_batch
from keras_accum.host import patches
from keras_accum.host.description import Host


class Callback:
    def set_model(self, model):
        self.model = model

    def _do_nothing(self, *arguments):
        pass

    on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = _do_nothing
    on_train_batch_begin = on_train_batch_end = on_test_begin = on_test_end = _do_nothing


def _forward(name):
    def call(self, *arguments):
        for callback in self.callbacks:
            getattr(callback, name)(*arguments)

    return call


class CallbackList:
    def __init__(self, callbacks, model):
        self.callbacks, self.model = list(callbacks), model
        for callback in self.callbacks:
            callback.set_model(model)

    on_train_begin, on_train_end = _forward("on_train_begin"), _forward("on_train_end")
    on_epoch_begin, on_epoch_end = _forward("on_epoch_begin"), _forward("on_epoch_end")
    on_test_begin, on_test_end = _forward("on_test_begin"), _forward("on_test_end")
    on_train_batch_begin = _forward("on_train_batch_begin")
    on_train_batch_end = _forward("on_train_batch_end")


class Loss:
    """A loss, with Keras's reductions."""

    def __init__(self, reduction="mean", name="loss"):
        self.reduction, self.name = reduction, name

    def __call__(self, y, y_pred, sample_weight=None):
        values, weights = self.call(y, y_pred), _weights(y, sample_weight)
        return np.sum(values * weights) / self.divisor(values, weights)

    def divisor(self, values, weights):
        of_weights = self.reduction == "mean_with_sample_weight"
        return 1 if self.reduction == "sum" else np.sum(weights) if of_weights else values.size

    def get_config(self):
        return {}


class SquaredError(Loss):
    """A value for each sample."""

    def call(self, y, y_pred):
        return np.mean(np.square(y_pred - y), axis=-1)

    def derivative(self, y, y_pred, sample_weight):
        weights = _weights(y, sample_weight)
        divisor = self.divisor(self.call(y, y_pred), weights)
        return 2 * (y_pred - y) * weights[:, None] / (y.shape[-1] * divisor)


def _weights(y, sample_weight):
    return np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, "float64")


class Mean:
    """A metric."""

    def __init__(self, name="loss"):
        self.name = name
        self.reset_state()

    def reset_state(self):
        self.total, self.count = np.float64(0), np.float64(0)

    def update_state(self, values, sample_weight=None):
        weight = 1 if sample_weight is None else sample_weight
        self.total, self.count = self.total + values * weight, self.count + weight

    def result(self):
        return float(self.total / self.count)


class CompiledLoss:
    """Keras's container of a model's losses, with a metric for each of several."""

    def __init__(self, losses):
        self._losses, self._user_loss_weights = list(losses), None
        self.built, self.metrics = False, []

    def build(self):
        names = range(len(self._losses)) if len(self._losses) > 1 else ()
        self.built, self.metrics = True, [Mean(f"{name}_loss") for name in names]

    def __call__(self, y, y_pred, sample_weight):
        if not self.built:
            self.build()
        total, metrics = 0.0, self.metrics or [None]
        for loss, metric in zip(self._losses, metrics):
            value = loss(y, y_pred, sample_weight)
            total += value
            if metric is not None:
                metric.update_state(value, sample_weight=len(y))
        return total


class Layer:
    """A layer with values that its calls may change."""

    def __init__(self, name, *kept, trainable=True):
        self.name, self.kept, self.trainable, self.built = name, list(kept), trainable, True
        self.weights = []


class Model(Layer):
    steps_per_execution, train_function, compiled_loss = 1, None, None

    def __init__(self, *layers):
        super().__init__("model")
        self.w, self.layers, self.built = Variable(np.zeros((3, 2)), "w"), list(layers), True
        self.weights = self.trainable_variables = [self.w]
        self.tracker = Mean()

    @property
    def metrics(self):
        return [self.tracker, *self.compiled_loss.metrics]

    def compile(self, optimizer, loss="mean"):
        """`loss` is a reduction, a loss or a list of losses."""
        losses = loss if isinstance(loss, list) else [loss]
        self.loss = [SquaredError(each) if isinstance(each, str) else each for each in losses]
        self.optimizer, self.compiled_loss = optimizer, CompiledLoss(self.loss)
        self.train_function = None
        for inner in getattr(optimizer, "optimizers", [optimizer]):
            getattr(inner, "inner_optimizer", inner).build(self.trainable_variables)

    def _flatten_layers(self):
        return [self, *self.layers]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return self.compiled_loss(y, y_pred, sample_weight)

    def compute_gradients(self, x, y, y_pred, sample_weight=None):
        derivatives = [loss.derivative(y, y_pred, sample_weight) for loss in self.loss]
        return [x.T @ sum(derivatives)]

    def train_step(self, data):
        x, y, sample_weight = data
        y_pred = x @ self.w.array
        loss = self.compute_loss(x, y, y_pred, sample_weight)
        self.tracker.update_state(loss, sample_weight=len(x))
        self.optimizer.apply(self.compute_gradients(x, y, y_pred, sample_weight), [self.w])
        return {metric.name: metric.result() for metric in self.metrics}

    def make_train_function(self, force=False):
        if self.train_function is None or force:
            self.train_function = lambda data: self.train_step(data)

    def train_on_batch(self, x, y, sample_weight=None):
        self.make_train_function()
        for metric in self.metrics:
            metric.reset_state()
        return self.train_function((x, y, sample_weight))

    def fit(self, data, batch_size, epochs=1, callbacks=(), validates=False):
        """Return the logs of each epoch. `data` is (x, y, sample weights or None)."""
        rows = [slice(i, i + batch_size) for i in range(0, len(data[0]), batch_size)]
        batches = [tuple(None if a is None else a[part] for a in data) for part in rows]
        return self.fit_batches(batches, epochs, callbacks, validates)

    def fit_batches(self, batches, epochs=1, callbacks=(), validates=False):
        callbacks, history = CallbackList(callbacks, self), []
        self.make_train_function()
        callbacks.on_train_begin()
        for epoch in range(epochs):
            callbacks.on_epoch_begin(epoch)
            for metric in self.metrics:
                metric.reset_state()
            for batch, arrays in enumerate(batches):
                callbacks.on_train_batch_begin(batch)
                logs = self.train_function(arrays)
                callbacks.on_train_batch_end(batch, logs)
            if validates:
                callbacks.on_test_begin()
                callbacks.on_test_end()
            callbacks.on_epoch_end(epoch, logs)
            history.append(logs)
        callbacks.on_train_end(logs)
        return history


# -- its description -------------------------------------------------------------------------------


def _cast(value, dtype):
    return np.asarray(value, dtype)[()]


class NumPyHost(Host):
    name = "numpy"
    keras = types.SimpleNamespace(
        __name__="numpy_keras",
        Model=Model,
        callbacks=types.SimpleNamespace(Callback=Callback, CallbackList=CallbackList),
        losses=types.SimpleNamespace(Loss=Loss),
        layers=types.SimpleNamespace(Layer=Layer),
        metrics=types.SimpleNamespace(Mean=Mean, Metric=Mean),
        models=types.SimpleNamespace(Model=Model),
    )
    ops = types.SimpleNamespace(
        **{name: getattr(np, name) for name in ("equal", "not_equal", "ones_like", "shape")},
        **{name: getattr(np, name) for name in ("size", "where", "zeros_like")},
        cast=_cast,
    )
    is_traced = False

    def flatten(self, structure):
        if isinstance(structure, (list, tuple)):
            return [leaf for item in structure for leaf in self.flatten(item)]
        return [structure]

    def get_mask(self, output):
        return None

    def read(self, variable):
        return np.array(getattr(variable, "array", variable))

    def find_losses(self, model):
        def replace(loss, function):
            return function(loss)

        return model.compiled_loss, "_losses", replace

    def list_loss_weights(self, container):
        return [None] * len(container._losses)

    def loss_metrics(self, model):
        return model.metrics

    def make_sum_loss(self, dtype):
        return Loss("sum")

    def list_added_losses(self, model):
        return []

    def has_penalties(self, model):
        return False

    def list_kept(self, layer):
        return getattr(layer, "kept", [])


HOST = NumPyHost()
ApplyPartialWindow = HOST.callback(apply_partial_window.ApplyPartialWindow)
MicroBatchWeights = HOST.callback(micro_batch_weights.MicroBatchWeights)
patches.plan("numpy", look_at_trainings(HOST), look_at_train_on_batch(HOST))
