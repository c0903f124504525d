#!/usr/bin/env bash
# Expectation: with gradient-centralization-tf, an optimizer of gctf.optimizers, or one whose get_gradients is
# gctf.centralized_gradients_for_optimizer(optimizer), trains with centralized gradients.
# What happens: nothing. TensorFlow 2's `fit` takes its gradients from a tape and never calls get_gradients, so
# all weights are, bit for bit, those of the optimizer alone. The package asks for TensorFlow 2.2 or later.
# Why it matters: a comparison with and without centralization compares a run with itself, and whatever
# else hooks into get_gradients (clipping, noise, sums over batches) is left out as silently.
# `gradient_transformers` of Keras 2's optimizers does reach `fit`.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.10}" -m venv "$folder"  # TensorFlow 2.10 needs Python 3.10 or older
"$folder/bin/pip" install -q --no-compile tensorflow-cpu==2.10.1 numpy==1.23.5
"$folder/bin/pip" install -q --no-compile --no-deps gradient-centralization-tf==0.0.3
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import sys
from importlib.metadata import version

import gctf.optimizers
import numpy as np
import tensorflow as tf

keras = tf.keras
random = np.random.default_rng(0)
x, y = random.normal(1, 1, (64, 4)), random.normal(size=(64, 2))


def centralize(gradients_and_weights):
    return [
        (g - tf.reduce_mean(g, axis=list(range(len(g.shape) - 1)), keepdims=True), w)
        if len(g.shape) > 1
        else (g, w)
        for g, w in gradients_and_weights
    ]


def train(optimizer):
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(4, "tanh", input_shape=(4,))
    model = keras.Sequential([hidden, keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=16, epochs=5, shuffle=False, verbose=0)
    return np.concatenate([w.ravel() for w in model.get_weights()])


alone = train(keras.optimizers.Adam(0.01))
assigned = keras.optimizers.Adam(0.01)
assigned.get_gradients = gctf.centralized_gradients_for_optimizer(assigned)
runs = {
    "gctf.optimizers.adam": gctf.optimizers.adam(0.01),
    "get_gradients of gctf": assigned,
    "gradient_transformers": keras.optimizers.Adam(0.01, gradient_transformers=[centralize]),
}
found = {name: float(np.abs(train(optimizer) - alone).max()) for name, optimizer in runs.items()}
print("tensorflow", tf.__version__, "gctf", version("gradient-centralization-tf"))
print("the greatest difference of a weight from Adam's alone:")
print("\n".join(f"{name}: {value:.2g}" for name, value in found.items()))
first, second, third = found.values()
sys.exit(0 if first == second == 0 and third > 1e-3 else "The behavior has changed.")
PYTHON
