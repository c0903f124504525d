"""How far each feature ends from the big batch: `python benchmarks/exactness.py`.

Trains a tiny network in float64 on TensorFlow, with 5 micro-batches of 4 against the stock
optimizer of the same host at batch 20. Prints the largest difference of a weight after 12 updates,
or "exact" below 1e-9. The columns are this package on Keras 3 and on tf_keras, and Keras 3's own
accumulation. On tf_keras the optimizers are legacy ones, except the new-style AdamW, which is used
for `weight_decay` and `use_ema`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

K, MICRO_BATCH, EPOCHS = 5, 4, 2
COLUMNS = {
    "keras3": "keras_accum, Keras 3",
    "tf_keras": "keras_accum, tf_keras",
    "own": "Keras 3's own",
}
EXACT = 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=COLUMNS, help="print one column")
    parser.add_argument("--inside", choices=COLUMNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(dict(Column(options.inside).cells())))
        return
    results = {name: run(name) for name in COLUMNS if options.only in (None, name)}
    print("| case | " + " | ".join(COLUMNS[name] for name in results) + " |")
    print("| --- |" + " --- |" * len(results))
    for case in next(iter(results.values())):
        print(f"| {case} | " + " | ".join(column[case] for column in results.values()) + " |")


def run(name):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    if name == "tf_keras":
        environment["TF_USE_LEGACY_KERAS"] = "1"
    command = [sys.executable, __file__, "--inside", name]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(output.decode().splitlines()[-1])


class NotThere(Exception):
    """The column has no such feature."""


class Column:
    """One implementation of accumulation, and its results in all cases."""

    def __init__(self, name):
        import numpy as np
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        if name == "tf_keras":
            import tf_keras as keras

            from keras_accum import tf_keras as accum

            self.stock_modules = keras.optimizers.legacy, keras.optimizers
        else:
            import keras

            from keras_accum import keras3 as accum

            self.stock_modules = (keras.optimizers,)
        keras.backend.set_floatx("float64")
        self.np, self.tf, self.keras, self.accum, self.name = np, tf, keras, accum, name
        generator = np.random.default_rng(0)
        size = 6 * K * MICRO_BATCH
        self.x, self.y = generator.normal(size=(size, 6)), generator.normal(size=(size, 2))

    # -- the two sides -------------------------------------------------------------------------

    def stock(self, name, **arguments):
        if name == "AMSGrad":
            name, arguments = "Adam", {**arguments, "amsgrad": True}
        module = next(module for module in self.stock_modules if hasattr(module, name))
        return getattr(module, name)(**arguments)

    def accumulate(self, name, accum_iters=K, **arguments):
        if self.name == "own":
            return self.stock(name, gradient_accumulation_steps=accum_iters, **arguments)
        return getattr(self.accum, name + "Accumulate")(accum_iters=accum_iters, **arguments)

    def model(self, constraint=None):
        self.keras.utils.set_random_seed(0)
        layers = self.keras.layers
        return self.keras.Sequential(
            [
                self.keras.Input((6,)),
                layers.Dense(8, activation="tanh", kernel_constraint=constraint),
                layers.Dense(2),
            ]
        )

    def fit(self, optimizer, batch, constraint=None, compiled=None, epochs=EPOCHS, **more):
        model = self.model(constraint)
        model.compile(optimizer=optimizer, loss="mean_squared_error", **(compiled or {}))
        settings = {"batch_size": batch, "epochs": epochs, "shuffle": False, "verbose": 0}
        model.fit(self.x, self.y, **settings, **more)
        return model.get_weights()

    def compare(self, name="Adam", arguments=None, accum_iters=K, **both):
        """Return the largest weight difference between accumulation and the stock big batch.

        `arguments` may be a function, for objects that two optimizers can't share.
        """
        if callable(arguments):
            make = arguments
        else:
            fixed = {"learning_rate": 0.01, **(arguments or {})}
            make = fixed.copy
        return difference(
            self.fit(self.accumulate(name, accum_iters, **make()), MICRO_BATCH, **both),
            self.fit(self.stock(name, **make()), MICRO_BATCH * accum_iters, **both),
        )

    # -- the cases -----------------------------------------------------------------------------

    def cells(self):
        for case in CASES:
            try:
                result = CASES[case](self)
            except NotThere:
                result = "-"
            except Exception as error:
                result = f"error: {type(error).__name__}"
            if isinstance(result, float):
                result = "exact" if result < EXACT else f"{result:.0e}"
            yield case, str(result)

    def schedule(self):
        schedules = self.keras.optimizers.schedules
        return self.compare(
            arguments=lambda: {"learning_rate": schedules.ExponentialDecay(0.05, 3, 0.5)}
        )

    def decay(self):
        if self.name == "own":
            raise NotThere
        if self.name == "tf_keras":
            return self.compare(arguments={"decay": 0.125})
        tf, schedules = self.tf, self.keras.optimizers.schedules

        class TimeDecay(schedules.LearningRateSchedule):  # Keras's own schedules compute in float32
            def __call__(self, step):
                return 0.01 / (1 + 0.125 * tf.cast(step, "float64"))

        return difference(
            self.fit(self.accumulate("Adam", learning_rate=0.01, decay=0.125), MICRO_BATCH),
            self.fit(self.stock("Adam", learning_rate=TimeDecay()), MICRO_BATCH * K),
        )

    def learning_rate_callbacks(self):
        callbacks = self.keras.callbacks
        return max(
            self.compare(callbacks=[callback], validation_data=(self.x, self.y))
            for callback in (
                callbacks.LearningRateScheduler(lambda epoch, rate: 0.02 / (epoch + 1)),
                callbacks.ReduceLROnPlateau(patience=0, min_delta=10.0),
            )
        )

    def adamw(self, **arguments):
        """Compare AdamW, since legacy optimizers don't have these arguments."""
        return self.compare("AdamW", arguments)

    def embedding(self):
        """Compare with repeated ids.

        The reference computes the same model densely: one_hot(ids) @ table.
        """
        keras, np = self.keras, self.np
        ids = np.random.default_rng(1).integers(0, 5, size=(len(self.x), 3))

        def weights(optimizer, batch, sparse):
            keras.utils.set_random_seed(0)
            if sparse:
                first = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(7, 4)]
                data = ids
            else:
                first = [keras.Input((3, 7)), keras.layers.Dense(4, use_bias=False)]
                data = np.eye(7)[ids]
            model = keras.Sequential([*first, keras.layers.Flatten(), keras.layers.Dense(2)])
            table = np.random.default_rng(2).normal(size=(7, 4))
            head = np.random.default_rng(3).normal(size=(12, 2))
            model.set_weights([table, head, np.zeros(2)])
            model.compile(optimizer=optimizer, loss="mean_squared_error")
            model.fit(data, self.y, batch_size=batch, shuffle=False, verbose=0)
            return model.get_weights()

        return max(
            difference(
                weights(self.accumulate(name), MICRO_BATCH, True),
                weights(self.stock(name), MICRO_BATCH * K, False),
            )
            for name in ("SGD", "Adam", "RMSprop")
        )

    def sum_reduction(self):
        if self.name == "own":
            raise NotThere
        rate = 1 / 128  # K times this rate is exact in float32, in which tf_keras keeps it
        ours = self.accumulate("SGD", learning_rate=rate, reduction="sum")
        return difference(
            self.fit(ours, MICRO_BATCH),
            self.fit(self.stock("SGD", learning_rate=rate * K), MICRO_BATCH * K),
        )

    def leftover(self):
        """Four windows and two more micro-batches, which are applied with their own average."""
        if self.name == "own":
            raise NotThere
        rows = (4 * K + 2) * MICRO_BATCH
        sizes = [K * MICRO_BATCH] * 4 + [2 * MICRO_BATCH]
        model = self.model()
        model.compile(optimizer=self.accumulate("Adam"), loss="mean_squared_error")
        model.fit(
            self.x[:rows],
            self.y[:rows],
            batch_size=MICRO_BATCH,
            shuffle=False,
            verbose=0,
            callbacks=[self.accum.ApplyPartialWindow()],
        )
        reference = self.model()
        reference.compile(optimizer=self.stock("Adam"), loss="mean_squared_error")
        start = 0
        for size in sizes:
            reference.train_on_batch(self.x[start : start + size], self.y[start : start + size])
            start += size
        return difference(model.get_weights(), reference.get_weights())

    def compiled(self, **settings):
        return self.compare(compiled=settings)

    def save_in_window(self):
        extension = "h5" if self.name == "tf_keras" else "keras"
        custom = {"AdamAccumulate": self.accum.AdamAccumulate}
        stop = (2 * K + 3) * MICRO_BATCH
        settings = {"batch_size": MICRO_BATCH, "shuffle": False, "verbose": 0}
        model = self.model()
        model.compile(optimizer=self.accumulate("Adam"), loss="mean_squared_error")
        model.fit(self.x[:stop], self.y[:stop], **settings)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model." + extension)
            model.save(path)
            loaded = self.keras.models.load_model(path, custom_objects=custom)
        for each in (model, loaded):
            each.fit(self.x[stop:], self.y[stop:], **settings)
        return difference(model.get_weights(), loaded.get_weights())

    def mirrored(self):
        """Two replicas, each with half of every micro-batch, in a traced `strategy.run` loop."""
        tf = self.tf
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = self.model()
            optimizer = self.accumulate("Adam", learning_rate=0.01)
            if self.name != "tf_keras":
                optimizer.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y)) / 2
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        train = tf.function(lambda x, y: strategy.run(step, args=(x, y)))
        for start in range(0, len(self.x), MICRO_BATCH):
            halves = [slice(start + i * 2, start + i * 2 + 2) for i in range(2)]

            def value(array, halves=halves):
                return strategy.experimental_distribute_values_from_function(
                    lambda context: array[halves[context.replica_id_in_sync_group]]
                )

            train(value(self.x), value(self.y))
        reference = self.fit(self.stock("Adam", learning_rate=0.01), MICRO_BATCH * K, epochs=1)
        return difference(model.get_weights(), reference)

    def conditionals(self):
        """Count the control flow in an update that XLA compiles, and in its function library.

        Ours has the gate that is the default where a GPU is visible.
        """
        tf = self.tf
        variable = tf.Variable(self.np.ones((3, 2)))
        gate = {} if self.name == "own" else {"gate": "select"}
        optimizer = self.accumulate("Adam", clipnorm=1.0, **gate)

        @tf.function(jit_compile=True)
        def apply(gradient):
            optimizer.apply_gradients([(gradient, variable)])

        graph = apply.get_concrete_function(tf.TensorSpec((3, 2), "float64")).graph.as_graph_def()
        nodes = list(graph.node) + [n for f in graph.library.function for n in f.node_def]
        names = {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"}
        return sum(node.op in names for node in nodes)

    def infinite_gradient(self):
        """Return "intact" if an infinite gradient inside a window leaves the weights unchanged."""
        tf = self.tf
        variable = tf.Variable(self.np.ones(3))
        optimizer = self.accumulate("Adam", learning_rate=0.01)

        @tf.function
        def apply(gradient):
            optimizer.apply_gradients([(gradient, variable)])

        for gradient in (1.0, float("inf"), 1.0, 1.0):
            apply(tf.fill([3], tf.constant(gradient, "float64")))
        return "intact" if (variable.numpy() == 1).all() else "reached"


def difference(some, others):
    return float(max(abs(a - b).max() for a, b in zip(some, others)))


def worst(*rows, **arguments):
    return lambda column: max(column.compare(name, {**more, **arguments}) for name, more in rows)


CASES = {
    "SGD": worst(("SGD", {})),
    "SGD momentum, Nesterov": worst(
        ("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.9, "nesterov": True})
    ),
    "RMSprop, centered, with momentum": worst(
        ("RMSprop", {}), ("RMSprop", {"centered": True}), ("RMSprop", {"momentum": 0.5})
    ),
    "Adam, AMSGrad": worst(("Adam", {}), ("AMSGrad", {})),
    "accum_iters = 1": lambda column: column.compare(accum_iters=1),
    "schedule counts updates": Column.schedule,
    "`decay`": Column.decay,
    "LearningRateScheduler, ReduceLROnPlateau": Column.learning_rate_callbacks,
    "clipnorm, clipvalue, global_clipnorm": lambda column: max(
        column.compare(arguments={clip: 0.1})
        for clip in ("clipnorm", "clipvalue", "global_clipnorm")
    ),
    "weight_decay": lambda column: column.adamw(weight_decay=0.1),
    "use_ema": lambda column: column.adamw(use_ema=True, ema_momentum=0.5),
    "use_ema, overwriting": lambda column: column.adamw(
        use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "max_norm constraint": lambda column: column.compare(
        constraint=column.keras.constraints.MaxNorm(0.5)
    ),
    "constraint that is not idempotent": lambda column: column.compare(
        constraint=lambda weights: 0.9 * weights
    ),
    "embedding, repeated ids, against the dense gradient": Column.embedding,
    "reduction = sum": Column.sum_reduction,
    "leftover at the end of an epoch": Column.leftover,
    "jit_compile": lambda column: column.compiled(jit_compile=True),
    "run_eagerly": lambda column: column.compiled(run_eagerly=True),
    "steps_per_execution = 3": lambda column: column.compiled(steps_per_execution=3),
    "saved in a window, loaded, continued": Column.save_in_window,
    "MirroredStrategy, 2 replicas": Column.mirrored,
    "conditionals in a graph for XLA, the default on a GPU": Column.conditionals,
    "weights in a window with an infinite gradient": Column.infinite_gradient,
}


if __name__ == "__main__":
    main()
