"""How repeatable a training is on Keras 2: `python benchmarks/repeatability.py`, on Python 3.7.

    pip install '.[keras2]' runai==0.4.1 && python benchmarks/repeatability.py

TensorFlow 1 doesn't order operations that the graph doesn't order. The script builds and runs one
training of a small network many times, and prints how many different results that gives.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import backend as K
from shared import contenders
from shared.contenders import SELECT, STOCK

MICRO_BATCH, WINDOW = 16, 8


def network():
    x = y = keras.layers.Input((64,))
    for _ in range(3):
        y = keras.layers.Dense(64, activation="relu")(y)
    return keras.models.Model(x, keras.layers.Dense(10)(y))


def count_ends(make_optimizer, builds):
    generator = np.random.RandomState(0)
    x, y = generator.normal(size=(320, 64)), generator.normal(size=(320, 10))
    weights = None
    ends = set()
    for _ in range(builds):
        K.clear_session()
        model = network()
        weights = weights or [generator.normal(size=w.shape) / 8 for w in model.get_weights()]
        model.set_weights(weights)
        model.compile(make_optimizer(WINDOW), "mse")
        model.fit(x, y, MICRO_BATCH, epochs=2, shuffle=False, verbose=0)
        ends.add(b"".join(w.tobytes() for w in model.get_weights()))
    return len(ends)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="builds of each training")
    builds = parser.parse_args().rounds
    found = contenders.find("keras2")
    for name in (SELECT, STOCK, "runai", "the copied class"):
        if name in found:
            ends = count_ends(found[name].optimizer, builds)
            print("%-20s%8d different results of %d runs" % (name, ends, builds))


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.ERROR)
    main()
