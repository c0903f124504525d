"""On PyTorch, `fit` adds up the gradients of a variable over batches if another has its path.

Keras 3.15: `Model.zero_grad()` goes through `torch_params`, a dictionary by `variable.path`. Paths
needn't be unique: the two models here each have a layer called "dense". So the dictionary has only
one of the two kernels, and the gradient of the other kernel is never reset.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np


def tower():
    inputs = keras.Input((1,))
    outputs = keras.layers.Dense(1, "linear", False, "zeros", name="dense")(inputs)
    return keras.Model(inputs, outputs)


inputs = keras.Input((1,))
model = keras.Model(inputs, keras.layers.Add()([tower()(inputs), tower()(inputs)]))
model.compile(keras.optimizers.SGD(0.1), "mse")
x = np.ones((6, 1))
model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
first, second = model.get_weights()
print("two kernels that have the same gradients:", first, second)
assert np.allclose(first, second), "the gradients of one kernel are added up"
