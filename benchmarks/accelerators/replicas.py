"""How often two replicas of TensorFlow's MirroredStrategy reduce gradients in an update of `fit`.

They train on a CPU, and the reductions that run are counted.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from shared import contenders
from shared.contenders import DEFAULT, IN_SLICES, OWN, STOCK
from tables import MIRRORED

from . import K

WIDTH, BATCH = 64, 16

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
counts = {"all-reduce": tf.Variable(0), "bytes": tf.Variable(0)}


class Counting(tf.distribute.ReductionToOneDevice):
    """Counts in the graph, where a reduction runs."""

    def batch_reduce_implementation(self, reduce_op, pairs, options):
        size = sum(4 * value.values[0].shape.num_elements() for value, _ in pairs)
        counts["all-reduce"].assign_add(1)
        counts["bytes"].assign_add(size)
        return super().batch_reduce_implementation(reduce_op, pairs, options)


def measure(what):
    """Return {contender: how often an update reduces, and the bytes of a parameter}."""
    found = {**contenders.find("keras3"), DEFAULT: contenders.default("keras3")}
    found = {name: found[name] for name in (STOCK, DEFAULT, OWN)}
    found[STOCK] = found[STOCK]._replace(big=True)
    found[IN_SLICES] = contenders.in_slices("keras3", BATCH // 2)  # of each replica
    figures = {}
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], Counting()).scope():
        for name, contender in found.items():
            try:
                figures[name] = _figures(contender)
            except RuntimeError as error:  # Keras's own accumulation has a branch there
                figures[name] = {"error": str(error).strip().splitlines()[0]}
    return {MIRRORED: figures}


def _figures(contender):
    layers = [keras.layers.Dense(WIDTH) for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers])
    model.compile(contender.optimizer(K), "mse", jit_compile=False)
    x = np.ones((K * BATCH, WIDTH), "float32")
    settings = {"batch_size": len(x) if contender.big else BATCH, "verbose": 0}
    settings["callbacks"] = contender.callbacks()
    model.fit(x, x, **settings)  # traces
    for counted in counts.values():
        counted.assign(0)
    model.fit(x, x, **settings)
    reductions, moved = (int(counted) for counted in counts.values())
    return {"all-reduce": reductions, "bytes": round(moved / model.count_params(), 2)}
