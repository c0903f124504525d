"""What the packages for Keras share, for the table of everybody. This module runs on Python 3.7."""

import os
import tempfile

import numpy as np

from .common import (
    AVERAGE,
    BIG,
    CLIP,
    DECAY,
    INFINITE,
    LEFT_OVER,
    MICRO,
    RATE,
    STEPS,
    STOP,
    WINDOWS,
    Data,
    K,
    difference,
    start,
)


class Column:
    """One package. `optimizer`, `wrapped` and `callbacks_of` are what its user writes."""

    floatx, extension = "float64", "keras"
    per_batch = "on_train_batch_end"

    def __init__(self, keras, stock):
        self.keras, self.stock_optimizers = keras, stock
        keras.backend.set_floatx(self.floatx)

    # -- what a user of the package writes ------------------------------------------------------

    def optimizer(self, name, **arguments):
        return self.stock(name, **arguments)

    def wrapped(self, model):
        return model

    def callbacks_of(self, row):
        return []

    def custom_objects(self):
        return {}

    # -- the two sides --------------------------------------------------------------------------

    def stock(self, name, **arguments):
        return getattr(self.stock_optimizers, name)(**arguments)

    def data(self, **what):
        return Data(floatx=self.floatx, **what)

    def model(self, masked=False, normalized=False, constraint=None):
        layers = self.keras.layers
        inputs = layers.Input((STEPS, 3) if masked else (3,))
        x = layers.Masking()(inputs) if masked else inputs
        x = layers.Dense(4, kernel_constraint=constraint)(x)
        x = layers.BatchNormalization(momentum=0.9)(x) if normalized else x
        x = layers.Activation("tanh")(x)
        model = self.keras.models.Model(inputs, layers.Dense(2)(x))
        first = start(self.floatx)
        for layer in model.layers:
            if layer.__class__.__name__ == "Dense":
                name = "out" if layer is model.layers[-1] else "hidden"
                layer.set_weights([first[name], first[name + "_bias"]])
        return model

    def compiled(self, model, optimizer):
        model.compile(optimizer=optimizer, loss="mean_squared_error")
        return model

    def fit(self, model, data, size, rows=slice(None), callbacks=()):
        x, y = data.x[rows], data.y[rows]
        x = x * data.mask[rows][..., None] if x.ndim == 3 else x
        settings = {"epochs": 1, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(x, y, batch_size=size, **settings)
        return [weight for layer in model.layers for weight in layer.get_weights()]

    def train(self, data, name="Adam", row=None, arguments=None, **of_model):
        arguments = {"learning_rate": RATE} if arguments is None else arguments()
        model = self.wrapped(self.model(**of_model))
        self.compiled(model, self.optimizer(name, **arguments))
        return self.fit(model, data, MICRO, callbacks=self.callbacks_of(row))

    def reference(self, data, name="Adam", arguments=None, leave=(), **of_model):
        arguments = {"learning_rate": RATE} if arguments is None else arguments()
        model = self.compiled(self.model(**of_model), self.stock(name, **arguments))
        kept = [i for i in range(len(data.x)) if i // MICRO not in leave]
        return self.fit(model, data, BIG, kept)

    def compare(self, data=None, name="Adam", row=None, leave=(), arguments=None, **of_model):
        data = data or self.data()
        found = self.train(data, name, row, arguments, **of_model)
        return difference(found, self.reference(data, name, arguments, leave, **of_model))

    # -- the rows -------------------------------------------------------------------------------

    def schedule(self):
        schedules = self.keras.optimizers.schedules
        return self.compare(
            arguments=lambda: {"learning_rate": schedules.ExponentialDecay(RATE, 1, 0.5)}
        )

    def clipping(self):
        return self.compare(arguments=lambda: {"learning_rate": RATE, "global_clipnorm": CLIP})

    def decay(self):
        rule = {"learning_rate": RATE, "weight_decay": DECAY}
        return self.compare(name="AdamW", arguments=lambda: rule)

    def tokens(self):
        return self.compare(self.data(tokens=True), row="tokens", masked=True)

    def last(self):
        data = self.data(more=LEFT_OVER)
        found = self.train(data, row="last")
        closed = difference(found, self.reference(data))
        whole = difference(found, self.reference(data, leave=range(WINDOWS * K, data.count)))
        return "left over" if whole < closed else closed

    def average(self):
        rule = {"learning_rate": RATE, "use_ema": True, "ema_momentum": AVERAGE}
        return self.compare(name="AdamW", arguments=lambda: rule)

    def normalization(self):
        return self.compare(normalized=True)

    def constraint(self):
        return self.compare(constraint=self.keras.constraints.MaxNorm(0.5))

    def infinite(self):
        data = self.data(more=1)
        data.x[INFINITE * MICRO] = float("inf")
        return self.compare(data, row="infinite", leave=[INFINITE])

    def continued(self):
        data = self.data()
        model = self.compiled(self.wrapped(self.model()), self.optimizer("Adam"))
        stopped, rest = slice(STOP * MICRO), slice(STOP * MICRO, None)
        self.fit(model, data, MICRO, stopped)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model." + self.extension)
            model.save(path)
            loaded = self.keras.models.load_model(path, custom_objects=self.custom_objects())
        found = self.fit(loaded, data, MICRO, rest)
        reference = self.compiled(self.model(), self.stock("Adam"))
        return difference(found, self.fit(reference, data, BIG))

    def callbacks(self):
        calls = []

        class Count(self.keras.callbacks.Callback):
            def on_batch_end(self, batch, logs=None):
                calls.append(batch)

        model = self.compiled(self.wrapped(self.model()), self.optimizer("Adam"))
        self.fit(model, self.data(), MICRO, callbacks=[Count()])
        return f"{len(calls)} (`{self.per_batch}`)"


class OfTensorFlow(Column):
    """The rows that need TensorFlow 2."""

    def missing(self):
        """A loop of one's own: one of two heads has no gradient in every second micro-batch."""
        import tensorflow as tf

        data = self.data(heads=True)
        found = []
        for accumulated in (True, False):
            variables = [tf.Variable(value) for value in start(self.floatx).values()]
            if getattr(self.keras, "__version__", "2") >= "3":
                variables = [self.keras.Variable(value) for value in start(self.floatx).values()]
            make = self.optimizer if accumulated else self.stock
            optimizer = make("Adam", learning_rate=RATE)
            if hasattr(optimizer, "build"):
                optimizer.build(variables)
            for x, y, _, heads in data.parts(MICRO if accumulated else BIG):
                with tf.GradientTape() as tape:
                    weights = [tf.convert_to_tensor(v) for v in variables]
                    tape.watch(weights)
                    hidden = tf.tanh(x @ weights[0] + weights[1])
                    out, other = (hidden @ w + b for w, b in (weights[2:4], weights[4:]))
                    if not heads.any():
                        found_y = out
                    elif heads.all():
                        found_y = other
                    else:
                        found_y = tf.where(heads[:, None] == 0, out, other)
                    loss = tf.reduce_mean((found_y - y) ** 2)
                gradients = tape.gradient(loss, weights)
                pairs = [(g, v) for g, v in zip(gradients, variables) if g is not None]
                optimizer.apply_gradients(pairs)
            found.append([np.asarray(v) for v in variables])
        return difference(*found)

    def replicas(self):
        """`fit` on two replicas, each with one sample of every micro-batch."""
        import tensorflow as tf

        data = self.data()
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = self.compiled(self.wrapped(self.model()), self.optimizer("Adam"))
        found = self.fit(model, data, MICRO)
        reference = self.compiled(self.model(), self.stock("Adam"))
        return difference(found, self.fit(reference, data, BIG))


def two_devices():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
