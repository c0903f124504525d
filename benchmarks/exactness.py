"""How far each feature ends from the big batch: `python benchmarks/exactness.py`.

Trains a tiny network in float64 with Keras 3 on TensorFlow, with 5 micro-batches of 4 against the
stock optimizer at batch 20. Prints the largest difference of a weight after 12 updates, or "exact"
below 1e-9, of this package and of Keras 3's own accumulation. `everybody` has further cases.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_accum

K, MICRO_BATCH, EPOCHS = 5, 4, 2
BIG = K * MICRO_BATCH
EXACT = 1e-9

random = np.random.default_rng(0)
x, y = random.normal(size=(6 * BIG, 6)), random.normal(size=(6 * BIG, 2))


def ours(name, accum_iters=K, **arguments):
    return getattr(keras_accum, name + "Accumulate")(accum_iters=accum_iters, **arguments)


def own(name, accum_iters=K, **arguments):
    return stock(name, gradient_accumulation_steps=accum_iters, **arguments)


def stock(name, **arguments):
    return getattr(keras.optimizers, name)(**arguments)


def train(optimizer, batch, constraint=None, callbacks=(), **compiled):
    """Return the weights of a network."""
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(8, activation="tanh", kernel_constraint=constraint)
    model = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(2)])
    model.compile(optimizer, "mean_squared_error", **compiled)
    settings = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    model.fit(x, y, batch, validation_data=(x, y) if callbacks else None, **settings)
    return model.get_weights()


def train_on_words(optimizer, batch, is_sparse):
    """Return the weights after an epoch with an embedding of repeated ids, or densely."""
    ids = np.random.default_rng(1).integers(0, 5, size=(len(x), 3))
    first = [keras.Input((3, 7)), keras.layers.Dense(4, use_bias=False)]
    if is_sparse:
        first = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(7, 4)]
    model = keras.Sequential([*first, keras.layers.Flatten(), keras.layers.Dense(2)])
    start = [np.random.default_rng(i).normal(size=s) for i, s in ((2, (7, 4)), (3, (12, 2)))]
    model.set_weights([*start, np.zeros(2)])
    model.compile(optimizer, "mean_squared_error")
    model.fit(ids if is_sparse else np.eye(7)[ids], y, batch, shuffle=False, verbose=0)
    return model.get_weights()


def difference(some, others):
    return float(max(abs(a - b).max() for a, b in zip(some, others)))


def compare(name="Adam", accum_iters=K, optimizer=None, **both):
    """Return the distance from the stock optimizer at the big batch, given what accumulates."""
    arguments = {"learning_rate": 0.01, **(optimizer or {})}

    def case(make):
        accumulated = train(make(name, accum_iters, **arguments), MICRO_BATCH, **both)
        big = train(stock(name, **arguments), MICRO_BATCH * accum_iters, **both)
        return difference(accumulated, big)

    return case


def worst(*cases):
    return lambda make: max(case(make) for case in cases)


def decay(make):
    """`decay` of the optimizers before Keras 3, which only ours have."""

    class TimeDecay(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):  # Keras's own schedules compute in float32
            return 0.01 / (1 + 0.125 * tf.cast(step, "float64"))

    accumulated = train(make("Adam", learning_rate=0.01, decay=0.125), MICRO_BATCH)
    return difference(accumulated, train(stock("Adam", learning_rate=TimeDecay()), BIG))


def sums(make):
    accumulated = train(make("SGD", learning_rate=1 / 128, reduction="sum"), MICRO_BATCH)
    return difference(accumulated, train(stock("SGD", learning_rate=K / 128), BIG))


def embedding(make):
    """The reference computes the same model densely: one_hot(ids) @ table."""
    return max(
        difference(
            train_on_words(make(name), MICRO_BATCH, is_sparse=True),
            train_on_words(stock(name), BIG, is_sparse=False),
        )
        for name in ("SGD", "Adam", "RMSprop")
    )


def conditionals(make):
    """Count the control flow in an update that XLA compiles, and in its function library.

    Ours has the gate that is the default where a GPU is visible.
    """
    variable = tf.Variable(np.ones((3, 2)))
    optimizer = make("Adam", **({"gate": "select"} if make is ours else {}))
    optimizer.build([variable])
    apply = tf.function(lambda g: optimizer.apply_gradients([(g, variable)]), jit_compile=True)
    graph = apply.get_concrete_function(tf.TensorSpec((3, 2), "float64")).graph.as_graph_def()
    nodes = list(graph.node) + [n for f in graph.library.function for n in f.node_def]
    kinds = {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"}
    return sum(node.op in kinds for node in nodes)


schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.02 / (epoch + 1))
plateau = keras.callbacks.ReduceLROnPlateau(patience=0, min_delta=10.0)
CLIPPING = "clipnorm", "clipvalue", "global_clipnorm"
AVERAGE = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
CASES = {
    "SGD, momentum, Nesterov": worst(
        compare("SGD"),
        compare("SGD", optimizer={"momentum": 0.9}),
        compare("SGD", optimizer={"momentum": 0.9, "nesterov": True}),
    ),
    "RMSprop, centered, with momentum": worst(
        compare("RMSprop"),
        compare("RMSprop", optimizer={"centered": True}),
        compare("RMSprop", optimizer={"momentum": 0.5}),
    ),
    "Adam, AMSGrad": worst(compare(), compare(optimizer={"amsgrad": True})),
    "accum_iters = 1": compare(accum_iters=1),
    "`decay`": decay,
    "LearningRateScheduler": compare(callbacks=[schedule]),
    "ReduceLROnPlateau": compare(callbacks=[plateau]),
    "clipnorm, clipvalue, global_clipnorm": worst(
        *(compare(optimizer={clip: 0.1}) for clip in CLIPPING)
    ),
    "use_ema, overwriting": compare("AdamW", optimizer=AVERAGE),
    "constraint that is not idempotent": compare(constraint=lambda weights: 0.9 * weights),
    "embedding, repeated ids, against the dense gradient": embedding,
    "reduction = sum": sums,
    "jit_compile": compare(jit_compile=True),
    "run_eagerly": compare(run_eagerly=True),
    "steps_per_execution = 3": compare(steps_per_execution=3),
    "conditionals in a graph for XLA, the default on a GPU": conditionals,
}
ONLY_OURS = decay, sums


def cell(case, make):
    if make is own and case in ONLY_OURS:
        return "-"
    try:
        result = case(make)
    except Exception as error:
        return f"error: {type(error).__name__}"
    if isinstance(result, int):
        return str(result)
    return "exact" if result < EXACT else f"{result:.0e}"


if __name__ == "__main__":
    keras.backend.set_floatx("float64")
    print("| case | keras_accum | Keras 3's own |\n| --- | --- | --- |")
    for name, case in CASES.items():
        print(f"| {name} | {cell(case, ours)} | {cell(case, own)} |", flush=True)
