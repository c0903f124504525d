"""How far trainings end from the big batch: with TF32, without it, and in half precision."""

import contextlib
import functools

import keras
import numpy as np
from shared import networks
from shared.contenders import IN_SLICES, OWN

from keras_accum import MicroBatches, SGDAccumulate
from keras_accum.keras3.compare import in_full_precision

from .tables import AS_IT_COMES, CONTROL, FULL, OURS

MICRO_BATCH, WINDOW, UPDATES = 16, 5, 3
BIG = MICRO_BATCH * WINDOW
NETWORKS = {
    "MLP, tanh": functools.partial(networks.mlp, width=256, activation="tanh"),
    "convolutions, relu": functools.partial(networks.deep_conv_net, size=16, filters=(32,)),
    "transformer": functools.partial(networks.transformer, width=64, blocks=1, vocabulary=200),
}
SETTINGS = {
    AS_IT_COMES: ("float32", contextlib.nullcontext),
    FULL: ("float32", in_full_precision),
    "mixed_bfloat16": ("mixed_bfloat16", contextlib.nullcontext),
    "mixed_float16": ("mixed_float16", contextlib.nullcontext),
}


def measure(options, setting):
    """Return {network: {training: its distance}}, over how far the big batch's weights moved."""
    policy, scope = SETTINGS[setting]
    keras.config.set_dtype_policy(policy)
    names = list(NETWORKS)[: 1 if options.small else None]
    with scope():
        return {name: _distances(NETWORKS[name]) for name in names}


def _distances(network):
    keras.utils.set_random_seed(1)
    np.random.seed(1)
    model, make_x = network(keras)
    x, y = networks.draw(make_x, BIG * UPDATES)
    start = model.get_weights()
    order = np.random.permutation(BIG) + BIG * np.arange(UPDATES)[:, None]

    def train(make, batch, digits=slice(None), callbacks=(), **arguments):
        model.set_weights(start)
        model.compile(make(0.1, momentum=0.9, **arguments), networks.LOSS)
        settings = {"shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(x[digits], y[digits], batch_size=batch, **settings)
        return flat(model.get_weights())

    stock = keras.optimizers.SGD
    big = train(stock, BIG)
    ends = {
        OURS: train(SGDAccumulate, MICRO_BATCH, accum_iters=WINDOW),
        CONTROL: train(stock, BIG, order.ravel()),
        OWN: train(stock, MICRO_BATCH, gradient_accumulation_steps=WINDOW),
        IN_SLICES: train(stock, BIG, callbacks=[MicroBatches(MICRO_BATCH)]),
    }
    moved = abs(big - flat(start)).max()
    return {name: float(f"{abs(end - big).max() / moved:.1e}") for name, end in ends.items()}


def flat(weights):
    return np.concatenate([np.ravel(weight) for weight in weights]).astype("float64")
