"""The networks that the benchmarks train. This module runs on Python 3.7.

Each function returns a model for the given Keras, and a function that draws n inputs.
"""

from functools import partial

import numpy as np

CLASSES = 10


def mlp(keras, width=1024, inputs=None, layers=3, activation="relu"):
    """3.2 M parameters in four layers, where the optimizer takes most of the time."""
    inputs = inputs or width
    x = y = keras.layers.Input((inputs,))
    for _ in range(layers):
        y = keras.layers.Dense(width, activation=activation)(y)
    return _classifier(keras, x, y), lambda n: np.random.normal(size=(n, inputs))


def transformer(keras, width=256, blocks=8, vocabulary=10_000, length=128):
    """Eight blocks, 9 M parameters, on sequences of 128."""
    layers = keras.layers
    x = layers.Input((length,), dtype="int32")
    y = layers.Embedding(vocabulary, width)(x)
    for _ in range(blocks):
        z = layers.LayerNormalization()(y)
        y = layers.Add()([y, layers.MultiHeadAttention(8, width // 8)(z, z)])
        z = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(y))
        y = layers.Add()([y, layers.Dense(width)(z)])
    y = layers.GlobalAveragePooling1D()(y)
    return _classifier(keras, x, y), lambda n: np.random.randint(0, vocabulary, size=(n, length))


def conv_net(keras):
    """1.2 M parameters, where convolutions take most of the time."""
    layers = keras.layers
    x = y = layers.Input((28, 28, 1))
    y = layers.Conv2D(32, 3, activation="relu")(y)
    y = layers.Conv2D(64, 3, activation="relu")(y)
    y = layers.Flatten()(layers.MaxPooling2D()(y))
    y = layers.Dense(128, activation="relu")(y)
    return _classifier(keras, x, y), lambda n: np.random.normal(size=(n, 28, 28, 1))


def deep_conv_net(keras, size=64, filters=(64, 128, 256)):
    """Two convolutions with each number of filters, on pictures of this size."""
    layers, conv = keras.layers, {"kernel_size": 3, "activation": "relu", "padding": "same"}
    x = y = layers.Input((size, size, 3))
    for count in filters:
        y = layers.Conv2D(count, **conv)(layers.Conv2D(count, **conv)(y))
        y = layers.MaxPooling2D()(y)
    y = layers.GlobalAveragePooling2D()(y)
    return _classifier(keras, x, y), lambda n: np.random.normal(size=(n, size, size, 3))


def embedding(keras, rows=50_000, width=64):
    """A table with a row for each word. A micro-batch sees a few hundred rows."""
    x = keras.layers.Input((50,), dtype="int32")
    y = keras.layers.Embedding(rows, width)(x)
    y = keras.layers.GlobalAveragePooling1D()(y)
    y = keras.layers.Dense(128, activation="relu")(y)
    return _classifier(keras, x, y), lambda n: np.random.randint(0, rows, size=(n, 50))


def _classifier(keras, x, y):
    last = keras.layers.Dense(CLASSES, activation="softmax", dtype="float32")  # not in half
    return keras.models.Model(x, last(y))


LOSS = "sparse_categorical_crossentropy"
NETWORKS = {"MLP, 3.2 M": mlp, "conv net, 1.2 M": conv_net, "embedding, 3.2 M": embedding}
TRANSFORMER = "transformer, 23 M, 99 variables"


def on_gpu(is_small):
    """The networks that `fit` trains on a GPU, or small ones of the same kinds."""
    if is_small:
        return {
            "MLP, 54 M": partial(mlp, width=16, layers=1),
            TRANSFORMER: partial(transformer, width=8, blocks=1, vocabulary=50, length=4),
            "embedding, 26 M": partial(embedding, rows=50, width=8),
            "convolutions": partial(deep_conv_net, size=8, filters=(4,)),
        }
    return {
        "MLP, 54 M": partial(mlp, width=4096, inputs=1024, layers=4),
        TRANSFORMER: partial(transformer, width=512, blocks=6, vocabulary=8000),
        "embedding, 26 M": partial(embedding, rows=200_000, width=128),
        "convolutions": deep_conv_net,
    }


def draw(make_x, n):
    x = make_x(n)
    return x.astype("int32" if x.dtype.kind == "i" else "float32"), np.random.randint(
        0, CLASSES, size=(n, 1)
    )
