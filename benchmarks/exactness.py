"""Features beside those of `everybody`, in float64: `python benchmarks/exactness.py`.

Trains a tiny network with Keras 3 on TensorFlow, with 5 micro-batches of 4 against the stock
optimizer at batch 20. Prints the largest difference of a weight after 12 updates, or "exact" below
1e-9, of this package and of Keras 3's own accumulation.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_accum

K, MICRO_BATCH, EPOCHS = 5, 4, 2
EXACT = 1e-9

random = np.random.default_rng(0)
SAMPLES = 6 * K * MICRO_BATCH
x, y = random.normal(size=(SAMPLES, 6)), random.normal(size=(SAMPLES, 2))
schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.02 / (epoch + 1))
plateau = keras.callbacks.ReduceLROnPlateau(patience=0, min_delta=10.0)
overwriting = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}

# The optimizer, its arguments, and those of the training.
CASES = {
    "SGD": ("SGD", {}, {}),
    "momentum": ("SGD", {"momentum": 0.9}, {}),
    "Nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}, {}),
    "RMSprop": ("RMSprop", {}, {}),
    "RMSprop, centered": ("RMSprop", {"centered": True}, {}),
    "RMSprop with momentum": ("RMSprop", {"momentum": 0.5}, {}),
    "Adam": ("Adam", {}, {}),
    "AMSGrad": ("Adam", {"amsgrad": True}, {}),
    "accum_iters = 1": ("Adam", {}, {"k": 1}),
    "LearningRateScheduler": ("Adam", {}, {"callbacks": [schedule]}),
    "ReduceLROnPlateau": ("Adam", {}, {"callbacks": [plateau]}),
    "clipnorm": ("Adam", {"clipnorm": 0.1}, {}),
    "clipvalue": ("Adam", {"clipvalue": 0.1}, {}),
    "weight decay": ("AdamW", {"weight_decay": 0.1}, {}),
    "use_ema, overwriting": ("AdamW", overwriting, {}),
    "constraint that is not idempotent": ("Adam", {}, {"constraint": lambda w: 0.9 * w}),
    "jit_compile": ("Adam", {}, {"jit_compile": True}),
    "run_eagerly": ("Adam", {}, {"run_eagerly": True}),
    "steps_per_execution = 3": ("Adam", {}, {"steps_per_execution": 3}),
}


def ours(name, k, **arguments):
    return getattr(keras_accum, name + "Accumulate")(accum_iters=k, **arguments)


def own(name, k, **arguments):
    return stock(name, gradient_accumulation_steps=k, **arguments)


def stock(name, **arguments):
    return getattr(keras.optimizers, name)(**arguments)


def train(optimizer, batch, constraint=None, callbacks=(), **compiled):
    """Return the weights of a network."""
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(8, activation="tanh", kernel_constraint=constraint)
    model = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(2)])
    model.compile(optimizer, "mean_squared_error", **compiled)
    settings = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    model.fit(x, y, batch, validation_data=(x, y), **settings)
    return model.get_weights()


def cell(make, name, arguments, training):
    """Return how far what `make` makes ends from the stock optimizer at the big batch."""
    k = training.get("k", K)
    settings = {key: value for key, value in training.items() if key != "k"}
    arguments = {"learning_rate": 0.01, **arguments}
    try:
        accumulated = train(make(name, k, **arguments), MICRO_BATCH, **settings)
    except Exception as error:
        return f"error: {type(error).__name__}"
    big = train(stock(name, **arguments), MICRO_BATCH * k, **settings)
    distance = max(abs(a - b).max() for a, b in zip(accumulated, big))
    return "exact" if distance < EXACT else f"{distance:.0e}"


if __name__ == "__main__":
    keras.backend.set_floatx("float64")
    print("| case | keras_accum | Keras 3's own |\n| --- | --- | --- |")
    for name, case in CASES.items():
        print(f"| {name} | {cell(ours, *case)} | {cell(own, *case)} |", flush=True)
