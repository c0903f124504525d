"""gradient-accumulator's two wrappers, on tf.keras 2.15, for the table of everybody."""

import gradient_accumulator
import tensorflow as tf

from .common import K
from .of_keras import OfTensorFlow, two_devices

FLOATX = "float64"


def versions():
    return {"gradient-accumulator": "0.5.2", "tf.keras": tf.__version__}


def columns():
    two_devices()
    keras, stock = tf.keras, tf.keras.optimizers
    return {
        "gradient-accumulator, model": OfModel(keras, stock),
        "gradient-accumulator, optimizer": OfOptimizer(keras, stock),
    }


class Legacy(OfTensorFlow):
    """Adam is the legacy one, which the optimizer's wrapper is made for; AdamW is the newer one."""

    def stock(self, name, **arguments):
        legacy = self.stock_optimizers.legacy
        found = legacy if hasattr(legacy, name) else self.stock_optimizers
        return getattr(found, name)(**arguments)


class OfModel(Legacy):
    missing = None  # a loop of one's own has no model to wrap

    def wrapped(self, model):
        return gradient_accumulator.GradientAccumulateModel(
            accum_steps=K, inputs=model.input, outputs=model.output
        )

    def custom_objects(self):
        return {"GradientAccumulateModel": gradient_accumulator.GradientAccumulateModel}


class OfOptimizer(Legacy):
    def optimizer(self, name, **arguments):
        stock = self.stock(name, **arguments)
        return gradient_accumulator.GradientAccumulateOptimizer(optimizer=stock, accum_steps=K)

    def custom_objects(self):
        cls = gradient_accumulator.GradientAccumulateOptimizer
        return {"GradientAccumulateOptimizer": cls}
