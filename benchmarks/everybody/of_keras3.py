"""This package, and Keras 3's own accumulation, for the table of everybody."""

import keras
import tensorflow as tf

from keras_accum import keras3 as accum

from .common import K
from .of_keras import OfTensorFlow, two_devices

FLOATX = "float64"


def versions():
    return {
        "keras_accum": accum_version(),
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
    }


def accum_version():
    import keras_accum

    return keras_accum.__version__


def columns():
    two_devices()
    stock = keras.optimizers
    return {"keras_accum": Ours(keras, stock), "Keras's own": Own(keras, stock)}


class Ours(OfTensorFlow):
    row = None

    def optimizer(self, name, **arguments):
        more = {"tokens": {"reduction": "weighted"}, "infinite": {"skip_nonfinite": True}}
        arguments.update(more.get(self.row, {}))
        return getattr(accum, name + "Accumulate")(accum_iters=K, **arguments)

    def callbacks_of(self, row):
        more = {"tokens": accum.MicroBatchWeights, "last": accum.ApplyPartialWindow}
        return [more[row]()] if row in more else []

    def train(self, data, name="Adam", row=None, *arguments, **more):
        self.row = row
        try:
            return super().train(data, name, row, *arguments, **more)
        finally:
            self.row = None


class Own(OfTensorFlow):
    def optimizer(self, name, **arguments):
        return self.stock(name, gradient_accumulation_steps=K, **arguments)
