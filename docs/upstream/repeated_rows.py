"""On TensorFlow, Adam squares the parts of the gradient of an embedding's row one by one.

Keras 3.15: if a batch has an index twice, the gradient of its row comes as two parts. `assign_add`
in `Adam.update_step` adds them up for the momentum, as it should. But for the velocity each part is
squared alone, and the sum of squares isn't the square of the sum. So the update differs from that
with a dense gradient, as other backends have it. RMSprop, Nadam and others do the same.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf


def train(gradient):
    table = keras.Variable([[16.0], [16.0]])
    optimizer = keras.optimizers.Adam(1.0, beta_1=0.0, beta_2=0.5)
    optimizer.build([table])
    for _ in range(3):
        optimizer.apply([gradient])
    return keras.ops.convert_to_numpy(table)


rows = tf.IndexedSlices(tf.constant([[1.0], [3.0]]), tf.constant([0, 0]), tf.constant([2, 1]))
sparse, dense = train(rows), train(tf.convert_to_tensor(rows))
print("sparse:", sparse.ravel(), "dense:", dense.ravel())
assert np.allclose(sparse[0], dense[0], rtol=1e-5), "the parts of a row are squared apart"
