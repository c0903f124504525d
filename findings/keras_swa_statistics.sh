#!/usr/bin/env bash
# Expectation: keras-swa resets the statistics of batch normalization before the last epoch, and measures them
# anew in it, as a mean over all of its batches.
# What happens: the momentum that it sets for each batch has no effect, since the compiled step keeps the layer's
# own as a constant. After n batches a moving mean is 1 - 0.99^n of the data's: 8% of it with 8 batches.
# With run_eagerly=True its momentum acts, and gives the last batches most of the weight.
# Why it matters: larger batches are fewer, so raising the batch size makes the averaged model worse, up to
# useless, while its training loss looks well. Run `fit` for an epoch without the callback and with a rate of 0.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.10}" -m venv "$folder"  # TensorFlow 2.10 needs Python 3.10 or older
"$folder/bin/pip" install -q --no-compile tensorflow-cpu==2.10.1 numpy==1.23.5
"$folder/bin/pip" install -q --no-compile --no-deps keras-swa==0.1.7
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import sys
from importlib.metadata import version

import numpy as np
import tensorflow as tf
from swa.tfkeras import SWA

keras = tf.keras
random = np.random.default_rng(0)
x = np.concatenate([random.normal(4, 1, (128, 1)), random.normal(6, 1, (128, 1))])
y = x - 5


def train(batch_size, **arguments):
    """Return the moving mean of x, and the loss in training and in evaluation."""
    keras.utils.set_random_seed(0)
    normalization = keras.layers.BatchNormalization(input_shape=(1,))
    model = keras.Sequential([normalization, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", **arguments)
    average = SWA(start_epoch=30, lr_schedule="constant", swa_lr=0.01, batch_size=batch_size)
    settings = {"batch_size": batch_size, "verbose": 0, "callbacks": [average]}
    loss = model.fit(x, y, epochs=40, **settings).history["loss"][-1]
    mean = float(normalization.moving_mean[0])
    return [round(value, 2) for value in (mean, loss, model.evaluate(x, y, verbose=0))]


print("tensorflow", tf.__version__, "keras-swa", version("keras-swa"))
print("the data's mean is", round(float(x.mean()), 2))
print("batches in an epoch: the moving mean, and the loss in training and in evaluation")
found = {batches: train(256 // batches) for batches in (8, 64)}
for batches, values in found.items():
    print(f"{batches}:", *values)
expected = {batches: 5 * (1 - 0.99**batches) for batches in found}
same = all(abs(found[batches][0] - mean) < 0.1 for batches, mean in expected.items())
sys.exit(0 if same and found[8][2] > 20 * found[8][1] else "The behavior has changed.")
PYTHON
