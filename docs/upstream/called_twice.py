"""On JAX, a layer that is called twice loses the loss of its first call in `fit`.

Keras 3.15: an outermost call of a layer first clears the losses of the layer. `stateless_call`, by
which `fit` on JAX runs a model, makes each call inside of the model an outermost one. So a layer
that is called twice keeps the activity regularization of its second call alone.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

layer = keras.layers.Dense(1, kernel_initializer="ones", activity_regularizer="l2")
first, second = keras.Input((1,)), keras.Input((1,))
model = keras.Model([first, second], keras.layers.Add()([layer(first), layer(second)]))
model.compile(keras.optimizers.SGD(0.0), lambda y, predicted: 0.0 * predicted)
ones = np.ones((4, 1))

model([ones, ones])
expected = sum(float(loss) for loss in model.losses)
found = model.fit([ones, ones], ones, batch_size=4, verbose=0).history["loss"][0]
print("losses of both calls:", expected, "loss in fit:", found)
assert np.allclose(found, expected), "the loss of a call is missing"
