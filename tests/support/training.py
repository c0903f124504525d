"""Train our optimizer on micro-batches and the stock one, the only reference, on big batches."""

import contextlib
import functools
import warnings
from collections import namedtuple

import hosts
import numpy as np
from hosts import keras

LENGTH = 4  # micro-batches in a window
MICRO = 2  # samples in a micro-batch
BIG = LENGTH * MICRO
WINDOWS = 3  # in an epoch
EPOCHS = 3
SAMPLES = WINDOWS * BIG
UPDATES = WINDOWS * EPOCHS

Trained = namedtuple("Trained", "start weights slots")


def data():
    """Inputs and targets. Gradients are far from 0, where float32 could get their sign wrong."""
    random = np.random.default_rng(1)
    x = random.uniform(-1, 1, (SAMPLES, 3)).astype(hosts.FLOATX)
    y = random.uniform(1, 2, (SAMPLES, 2)).astype(hosts.FLOATX)
    return x, y


def batches(size, arrays=None):
    """The data as a list of batches."""
    x, y = arrays or data()
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def go_on(model, start=0, stop=None, arrays=None, batch_size=MICRO):
    """Train on the batches from `start` to `stop`, and return the model."""
    for x, y in batches(batch_size, arrays)[start:stop]:
        model.train_on_batch(x, y)
    return model


def in_windows(case, **more):
    """Our optimizer of a row of `cases.py`, with windows of LENGTH micro-batches."""
    return hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **more})


def dense_model(**arguments):
    """A small network. The arguments go to both layers. The layers' names identify the slots."""
    layers = [
        keras.layers.Dense(4, activation="tanh", name="hidden", **arguments),
        keras.layers.Dense(2, name="out", **arguments),
    ]
    return hosts.sequential((3,), layers)


class DenseEmbedding(keras.layers.Embedding):
    """An embedding with a dense gradient, which sums repeated rows and covers all rows."""

    def call(self, rows):
        one_hot = keras.ops.one_hot if hosts.IS_KERAS3 else hosts.tf.one_hot
        dot = keras.ops.matmul if hosts.IS_KERAS3 else keras.backend.dot
        return dot(one_hot(rows, self.input_dim, dtype=hosts.FLOATX), self.embeddings)


def embedding_model(layer):
    layers = [
        layer(6, 3, name="embedding"),
        keras.layers.Flatten(),
        keras.layers.Dense(2, name="out"),
    ]
    return hosts.sequential((5,), layers, dtype="int32")


def registered(cls):
    if hosts.IS_KERAS2:
        keras.utils.get_custom_objects()[cls.__name__] = cls
        return cls
    return keras.utils.register_keras_serializable("tests")(cls)


@registered
class Shrink(keras.constraints.Constraint):
    """Not idempotent, so that one application too many shows."""

    def __call__(self, w):
        return w * 0.9


def initialize(model):
    """Give models of the same shapes the same weights, none of them near zero."""
    random = np.random.default_rng(2)
    shapes = [w.shape for w in model.get_weights()]
    model.set_weights([random.choice([-1, 1], s) * random.uniform(0.2, 0.6, s) for s in shapes])
    return model


def compiled(model, optimizer, loss="mse", **arguments):
    """Compile our optimizer's train step as a user would, but on TensorFlow without XLA by default.

    The stock optimizer's train step runs eagerly: compiling it would take longer than the training.
    """
    if not (is_ours(optimizer) or hosts.IS_TORCH or hosts.IS_KERAS2):
        arguments = {"run_eagerly": not arguments, **arguments}
    if hosts.IS_KERAS3 and (hosts.IS_TENSORFLOW or arguments.get("run_eagerly")):
        arguments = {"jit_compile": False, **arguments}
    model.compile(optimizer, loss, **arguments)
    return initialize(model)


def fit(model, batch_size, arrays=None, **arguments):
    x, y = arrays or data()
    settings = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **arguments}
    return model.fit(x, y, batch_size=batch_size, **settings)


@contextlib.contextmanager
def our_warnings():
    """Yield a list, in which the texts of our warnings are after the block."""
    kind, texts = hosts.accum.AccumulationWarning, []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", kind)
        yield texts
    texts += [str(w.message) for w in found if issubclass(w.category, kind)]


def contrastive(y_true, y_pred):
    """Each sample's output is told from the other samples' outputs."""
    logits = keras.ops.matmul(y_pred, keras.ops.transpose(y_true))
    return keras.ops.logsumexp(logits, axis=-1) - keras.ops.diagonal(logits)


def scaled_model(optimizer):
    """Return a compiled model with a weight that only its loss reads, as CLIP's temperature."""

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
            self.built = True

        def call(self, x):
            return x

    scale = Scale(name="scale")
    model = hosts.sequential((3,), [keras.layers.Dense(2, name="out"), scale])
    square = keras.ops.square
    return compiled(model, optimizer, lambda y, p: keras.ops.mean(square(y * scale.scale - p)))


def weights(model):
    if hosts.IS_KERAS2:  # its weights' names depend on how many models were built before
        pairs = [(layer.name, layer.get_weights()) for layer in model.layers]
        return {f"{name}.{i}": w for name, ws in pairs for i, w in enumerate(ws)}
    return {v.path if hosts.IS_KERAS3 else v.name: hosts.array(v) for v in model.weights}


def inner(optimizer):
    """The optimizer inside a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_ours(optimizer):
    return hasattr(type(inner(optimizer)), "completed_updates")


def slots(model):
    """The optimizer's state as {name: array}."""
    found = hosts.slots(inner(model.optimizer), model.trainable_weights)
    return {name: hosts.array(v) for name, v in found.items()}


def state(model):
    """Everything that only an update may move: weights and slots, not the window's bookkeeping."""
    found = hosts.moved_by_updates(inner(model.optimizer), model.trainable_weights)
    return {**weights(model), **found}


def set_state(model, values):
    variables = dict(zip(weights(model), model.weights))
    variables.update(hosts.slots(inner(model.optimizer), model.trainable_weights))
    for name, value in values.items():
        hosts.assign(variables[name], value)


def train(optimizer, batch_size, build=dense_model, compile=None, callbacks=(), **fit_arguments):
    """Compile and fit a fresh model."""
    model = compiled(build(), optimizer, **(compile or {}))
    start = weights(model)
    fit(model, batch_size, callbacks=list(callbacks), **fit_arguments)
    if not is_ours(optimizer):  # a reference that hardly moves would test nothing
        assert max(np.abs(w - start[name]).max() for name, w in weights(model).items()) > 1e-3
    return Trained(start, weights(model), slots(model))


# -- a linear model without Keras, for hand-written loops ---------------------------------------

START = {"w": np.array([[0.5, -0.25], [0.375, 0.5], [-0.5, 0.25]]), "b": np.array([0.25, -0.5])}


def linear_variables():
    return [hosts.variable(value, name) for name, value in START.items()]


def squares(w, b, x, y):
    """The squared errors, written with operators that work on all backends."""
    return (x @ w + b - y) ** 2


def values(optimizer, variables):
    """Weights and slots as {name: array}."""
    found = {**dict(zip(START, variables)), **hosts.slots(optimizer, variables)}
    return {name: hosts.array(value) for name, value in found.items()}


# -- comparisons -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _big_batch(name, arguments):
    return train(hosts.stock(name, **dict(arguments)), BIG)


def big_batch(case):
    """The training of the stock optimizer at the big batch, cached for all tests that use it."""
    return _big_batch(case.name, tuple(case.arguments.items()))


def assert_equal(actual, expected, rtol=None, atol=None):
    """Every entry of `expected` is in `actual` and equal. `actual` may have further entries."""
    assert expected and set(expected) <= set(actual), f"{set(expected)} not in {set(actual)}"
    tolerance = {"rtol": 1e-7 if rtol is None else rtol, "atol": atol or 0}
    if rtol is None and atol is None:
        tolerance = hosts.TOLERANCE
    for name, value in expected.items():
        found, value = np.asarray(actual[name]), np.asarray(value)
        assert found.shape == value.shape, name
        found, value = found.astype("float64"), value.astype("float64")
        np.testing.assert_allclose(found, value, err_msg=str(name), **tolerance)


def assert_same_models(model, other):
    """Two models have the same weights, and their optimizers the same slots."""
    assert_equal(weights(model), weights(other))
    assert_equal(slots(model), slots(other))


def assert_moved(start, end, by=0.02):
    for name, value in end.items():
        assert np.abs(value - start[name]).max() > by, f"{name} hardly moved: nothing is tested"


def assert_same_training(actual, expected, **tolerance):
    assert_moved(expected.start, expected.weights)
    assert_equal(actual.start, expected.start, rtol=0, atol=0)
    assert_equal(actual.weights, expected.weights, **tolerance)
    assert_equal(actual.slots, expected.slots, **tolerance)
