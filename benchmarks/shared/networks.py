"""The networks that the benchmarks train. This module runs on Python 3.7.

Each function returns a model for the given Keras, and a function that draws n inputs.
"""

import numpy as np

CLASSES = 10


def mlp(keras, width=1024):
    """3.2 M parameters in four layers, where the optimizer takes most of the time."""
    x = y = keras.layers.Input((width,))
    for _ in range(3):
        y = keras.layers.Dense(width, activation="relu")(y)
    return _classifier(keras, x, y), lambda n: np.random.normal(size=(n, width))


def large_mlp(keras):
    """300 M parameters."""
    return mlp(keras, width=10_000)


def transformer(keras, width=256, blocks=8):
    """Eight blocks, 9 M parameters, on sequences of 128."""
    layers = keras.layers
    x = layers.Input((128,), dtype="int32")
    y = layers.Embedding(10_000, width)(x)
    for _ in range(blocks):
        z = layers.LayerNormalization()(y)
        y = layers.Add()([y, layers.MultiHeadAttention(8, width // 8)(z, z)])
        z = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(y))
        y = layers.Add()([y, layers.Dense(width)(z)])
    y = layers.GlobalAveragePooling1D()(y)
    return _classifier(keras, x, y), lambda n: np.random.randint(0, 10_000, size=(n, 128))


def conv_net(keras):
    """1.2 M parameters, where convolutions take most of the time."""
    layers = keras.layers
    x = y = layers.Input((28, 28, 1))
    y = layers.Conv2D(32, 3, activation="relu")(y)
    y = layers.Conv2D(64, 3, activation="relu")(y)
    y = layers.Flatten()(layers.MaxPooling2D()(y))
    y = layers.Dense(128, activation="relu")(y)
    return _classifier(keras, x, y), lambda n: np.random.normal(size=(n, 28, 28, 1))


def embedding(keras):
    """A table of 50,000 rows of 64. A micro-batch sees a few hundred rows."""
    x = keras.layers.Input((50,), dtype="int32")
    y = keras.layers.Embedding(50_000, 64)(x)
    y = keras.layers.GlobalAveragePooling1D()(y)
    y = keras.layers.Dense(128, activation="relu")(y)
    return _classifier(keras, x, y), lambda n: np.random.randint(0, 50_000, size=(n, 50))


def _classifier(keras, x, y):
    return keras.models.Model(x, keras.layers.Dense(CLASSES, activation="softmax")(y))


LOSS = "sparse_categorical_crossentropy"
NETWORKS = {"MLP, 3.2 M": mlp, "conv net, 1.2 M": conv_net, "embedding, 3.2 M": embedding}


def draw(make_x, n):
    x = make_x(n)
    return x.astype("int32" if x.dtype.kind == "i" else "float32"), np.random.randint(
        0, CLASSES, size=(n, 1)
    )
