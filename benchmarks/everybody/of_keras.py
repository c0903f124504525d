"""Packages for Keras, used as documented, for the table of everybody. It runs on Python 3.7."""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from .common import AVERAGE, BIG, EXACT, MICRO, RATE, STEPS, Column, K, start


def columns(group):
    """Return the versions, and {package: Column}."""
    return {"keras3": of_keras_3, "tf_keras_2_15": of_tf_keras, "keras2": of_keras_2}[group]()


class OfKeras(Column):
    """One package. `optimizer` and `wrapped` are what its user writes."""

    extension, per_batch, clip = "keras", "on_train_batch_end", "global_clipnorm"
    custom_objects = {}

    def __init__(self, keras):
        self.keras = keras
        keras.backend.set_floatx(self.floatx)

    def optimizer(self, case, name, **arguments):
        return self.stock_optimizer(name, **arguments)

    def wrapped(self, model):
        return model

    def stock_optimizer(self, name, **arguments):
        return getattr(self.keras.optimizers, name)(**arguments)

    def arguments(self, case):
        """Return the optimizer's name and arguments, in new objects."""
        decay = self.keras.optimizers.schedules.ExponentialDecay if case.scheduled else None
        found = {"learning_rate": decay(RATE, 1, 0.5) if decay else RATE}
        found.update({self.clip: case.clip} if case.clip else {})
        found.update({"weight_decay": case.decay} if case.decay else {})
        found.update({"use_ema": True, "ema_momentum": AVERAGE} if case.average else {})
        return {"name": "AdamW" if case.decay or case.average else "Adam", **found}

    def model(self, case):
        layers = self.keras.layers
        constraint = self.keras.constraints.MaxNorm(0.5) if case.constrained else None
        inputs = x = layers.Input((STEPS, 3) if case.tokens else (3,))
        x = layers.Masking()(x) if case.tokens else x
        x = layers.Dense(4, kernel_constraint=constraint)(x)
        x = layers.BatchNormalization(momentum=0.9)(x) if case.normalized else x
        model = self.keras.models.Model(inputs, layers.Dense(2)(layers.Activation("tanh")(x)))
        first = start(self.floatx)
        for layer in model.layers:
            if layer.__class__.__name__ == "Dense":
                name = "out" if layer is model.layers[-1] else "hidden"
                layer.set_weights([first[name], first[name + "_bias"]])
        return model

    def compiled(self, case):
        model = self.wrapped(self.model(case))
        model.compile(self.optimizer(case, **self.arguments(case)), loss="mean_squared_error")
        return model

    def train(self, case, data):
        model, arrays = self.compiled(case), data.arrays()
        if not case.stop:
            return self.fit(model, arrays, MICRO)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model." + self.extension)
            self.fit(
                model, arrays, MICRO, lambda batch: batch + 1 == case.stop and model.save(path)
            )
            loaded = self.keras.models.load_model(path, custom_objects=self.custom_objects)
        return self.fit(loaded, [array[case.stop * MICRO :] for array in arrays], MICRO)

    def stock(self, case, data, leave):
        model = self.model(case)
        model.compile(self.stock_optimizer(**self.arguments(case)), loss="mean_squared_error")
        return self.fit(model, data.arrays(leave), BIG)

    def fit(self, model, arrays, size, on_batch_end=None):
        x, y, mask, _ = arrays
        x = x * mask[..., None] if x.ndim == 3 else x
        callback = self.keras.callbacks.Callback()
        callback.on_batch_end = lambda batch, logs=None: on_batch_end(batch)
        settings = {"shuffle": False, "verbose": 0, "callbacks": [callback] * bool(on_batch_end)}
        model.fit(x, y, batch_size=size, **settings)
        return [weight for layer in model.layers for weight in layer.get_weights()]

    def calls(self, case, data):
        called = []
        self.fit(self.compiled(case), data.arrays(), MICRO, called.append)
        return f"{len(called)} (`{self.per_batch}`)"


class OfTensorFlow(OfKeras):
    """The rows that need TensorFlow 2."""

    def train(self, case, data):
        import tensorflow as tf

        if case.heads:
            return self.loop(self.optimizer(case, **self.arguments(case)), data.parts(MICRO))
        if not case.replicas:
            return super().train(case, data)
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = self.compiled(case)
        return self.fit(model, data.arrays(), MICRO)

    def stock(self, case, data, leave):
        if case.heads:
            return self.loop(self.stock_optimizer(**self.arguments(case)), data.parts(BIG, leave))
        return super().stock(case, data, leave)

    def loop(self, optimizer, batches):
        """A loop of one's own: a head that no sample uses has no gradient."""
        import tensorflow as tf

        variable = getattr(self.keras, "Variable", tf.Variable)  # of Keras 3
        variables = [variable(value) for value in start(self.floatx).values()]
        if hasattr(optimizer, "build"):
            optimizer.build(variables)
        for x, y, _, heads in batches:
            with tf.GradientTape() as tape:
                weights = [tf.convert_to_tensor(v) for v in variables]
                tape.watch(weights)
                hidden = tf.tanh(x @ weights[0] + weights[1])
                out, other = (hidden @ w + b for w, b in (weights[2:4], weights[4:]))
                if len(set(heads)) == 1:
                    found = other if heads[0] else out
                else:
                    found = tf.where(heads[:, None] == 0, out, other)
                loss = tf.reduce_mean((found - y) ** 2)
            pairs = zip(tape.gradient(loss, weights), variables)
            optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])
        return [np.asarray(v) for v in variables]


def two_devices():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf


def of_keras_3():
    import keras

    import keras_accum

    class Ours(OfTensorFlow):
        def optimizer(self, case, name, **arguments):
            arguments.update({"skip_nonfinite": True} if case.infinite else {})
            return getattr(keras_accum, name + "Accumulate")(accum_iters=K, **arguments)

    class Own(OfTensorFlow):
        def optimizer(self, case, name, **arguments):
            return self.stock_optimizer(name, gradient_accumulation_steps=K, **arguments)

    versions = {module.__name__: module.__version__ for module in (keras_accum, keras)}
    versions["tensorflow"] = two_devices().__version__
    return versions, {"keras_accum": Ours(keras), "Keras's own": Own(keras)}


def of_tf_keras():
    import gradient_accumulator as peer

    tf = two_devices()

    class Legacy(OfTensorFlow):
        """Adam is the legacy one, which the optimizer's wrapper is made for; AdamW is newer."""

        custom_objects = vars(peer)

        def stock_optimizer(self, name, **arguments):
            legacy = getattr(self.keras.optimizers.legacy, name, None)
            return (legacy or getattr(self.keras.optimizers, name))(**arguments)

    class OfModel(Legacy):
        says = {"missing": "-"}  # a loop of one's own has no model to wrap

        def wrapped(self, model):
            layers = {"inputs": model.input, "outputs": model.output}
            return peer.GradientAccumulateModel(accum_steps=K, **layers)

    class OfOptimizer(Legacy):
        def optimizer(self, case, name, **arguments):
            stock = self.stock_optimizer(name, **arguments)
            return peer.GradientAccumulateOptimizer(optimizer=stock, accum_steps=K)

    made = {"model": OfModel(tf.keras), "optimizer": OfOptimizer(tf.keras)}
    versions = {"gradient-accumulator": "0.5.2", "tf.keras": tf.__version__}
    return versions, {f"gradient-accumulator, {what}": column for what, column in made.items()}


def of_keras_2():
    import logging

    os.environ["KERAS_ACCUM_TEST_HOST"] = "keras2"
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
    import hosts
    import keras
    import runai.ga.keras.optimizers

    logging.disable(logging.DEBUG)  # runai logs a line per variable

    class Runai(OfKeras):
        """TensorFlow 1 orders nothing in its train step, so the nearest of several runs counts.

        The steps of the reference are ordered, as in the tests.
        """

        floatx, extension, per_batch, clip = "float32", "h5", "on_batch_end", "clipnorm"
        says = dict.fromkeys(("schedule", "decay", "average", "missing", "replicas"), "-")
        custom_objects = vars(runai.ga.keras.optimizers)

        def stock_optimizer(self, name, learning_rate, **arguments):
            return hosts.in_order(getattr(keras.optimizers, name)(lr=learning_rate, **arguments))

        def optimizer(self, case, name, learning_rate, **arguments):
            return getattr(runai.ga.keras.optimizers, name)(K, lr=learning_rate, **arguments)

        def distances(self, case, data):
            found = []
            while len(found) < 4 and (not found or found[-1][0] > EXACT[self.floatx]):
                keras.backend.clear_session()
                found.append(super().distances(case, data))
            return min(found)

    return {"runai": "0.4.1", "standalone Keras": keras.__version__}, {"runai": Runai(keras)}
