"""What a micro-batch costs on standalone Keras 2: `python benchmarks/keras2.py`, on Python 3.7.

    pip install .[keras2] runai==0.4.1 && python benchmarks/keras2.py

Prints the time of a micro-batch over that of stock Adam, which updates on every one, for a network
of 3.2 M parameters, and then, of as many builds of one training of a small network as there are
rounds, how many different weights they end with. For this package, for `runai` where it is
installed, and for the formula of the AdamAccumulate class that was copied across the web, which
computes new values on each micro-batch and blends them with the old ones; here with its writes in
order.

Only ratios of medians are printed, from rounds in which all contenders take turns in one process.
"""

import argparse
import logging
import os
import platform

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import backend as K
from timing import medians

from keras_accum.keras2 import AdamAccumulate

MICRO_BATCH, WINDOW = 16, 8


class Blending(keras.optimizers.Adam):
    """x <- (1 - s) x + s new(x), for weights and moments, s being 1 where the window closes."""

    def get_updates(self, loss, params):
        grads = self.get_gradients(loss, params)
        zeros = [[K.zeros(K.int_shape(p)) for p in params] for _ in range(3)]
        count = self.iterations + 1
        s = K.cast(K.equal(count % WINDOW, 0), "float32")
        t = K.cast(count // WINDOW, "float32") + 1 - s
        rate = self.lr * K.sqrt(1 - K.pow(self.beta_2, t)) / (1 - K.pow(self.beta_1, t))
        writes = []
        for p, g, m, v, a in zip(params, grads, *zeros):
            total = a + g
            average = total / WINDOW
            new_m = self.beta_1 * m + (1 - self.beta_1) * average
            new_v = self.beta_2 * v + (1 - self.beta_2) * K.square(average)
            new_p = p - rate * new_m / (K.sqrt(new_v) + self.epsilon)
            for x, new in ((m, new_m), (v, new_v), (p, new_p)):
                writes.append((x, (1 - s) * x + s * new))
            writes.append((a, (1 - s) * total))
        writes.append((self.iterations, count))
        with tf.control_dependencies([loss] + [new for _, new in writes]):
            return [K.update(x, new) for x, new in writes]


def contenders():
    found = {
        "ours": lambda: AdamAccumulate(accum_iters=WINDOW),
        "stock Adam": keras.optimizers.Adam,
        "blending": Blending,
    }
    try:
        logging.disable(logging.DEBUG)  # it tells of each variable
        import runai.ga.keras.optimizers
    except ImportError:
        print("runai is not installed")
    else:
        found["runai"] = lambda: runai.ga.keras.optimizers.Adam(WINDOW)
    return found


def network(width, inputs):
    x = y = keras.layers.Input((inputs,))
    for _ in range(3):
        y = keras.layers.Dense(width, activation="relu")(y)
    return keras.models.Model(x, keras.layers.Dense(10)(y))


def cost(rounds):
    steps = {}
    for name, make in contenders().items():
        model = network(1024, 1024)
        model.compile(make(), "mse")
        generator = np.random.RandomState(0)
        x = generator.normal(size=(4 * WINDOW * MICRO_BATCH, 1024))
        y = generator.normal(size=(len(x), 10))
        steps[name] = lambda model=model, x=x, y=y: model.fit(x, y, MICRO_BATCH, verbose=0)
    median = medians(steps, rounds)
    for name in median:
        print("%-12s%8.2f of stock Adam" % (name, median[name] / median["stock Adam"]))


def repeatability(builds):
    """How many different ends a training has, in as many builds of its graph."""
    generator = np.random.RandomState(0)
    x, y = generator.normal(size=(320, 64)), generator.normal(size=(320, 10))
    weights = None
    for name, make in contenders().items():
        ends = set()
        for _ in range(builds):
            K.clear_session()
            model = network(64, 64)
            weights = weights or [generator.normal(size=w.shape) / 8 for w in model.get_weights()]
            model.set_weights(weights)
            model.compile(make(), "mse")
            model.fit(x, y, MICRO_BATCH, epochs=2, shuffle=False, verbose=0)
            ends.add(b"".join(w.tobytes() for w in model.get_weights()))
        print("%-12s%8d different ends of %d" % (name, len(ends), builds))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="turns of each contender")
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"keras {keras.__version__}, tensorflow {tf.__version__}"
    )
    print(f"micro-batch {MICRO_BATCH}, accum_iters {WINDOW}, medians of {options.rounds} rounds")
    cost(options.rounds)
    repeatability(options.rounds)


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.ERROR)
    main()
