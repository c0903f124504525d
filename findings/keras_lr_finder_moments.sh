#!/usr/bin/env bash
# Expectation: after keras_lr_finder's LRFinder.find, the model trains as if there had been no search: it puts
# back the weights and the rate.
# What happens: the optimizer's moments and `iterations` stay. Those of Adam are of the search's last and
# largest rates, where the loss often explodes.
# Why it matters: the next training begins elsewhere, and any state that an optimizer keeps from batch to batch
# (a sum of gradients, too) leaks into it. Compile again before you train.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.7}" -m venv "$folder"  # TensorFlow 1.15 needs Python 3.7
"$folder/bin/pip" install -q --no-compile tensorflow==1.15.5 numpy==1.18.5 h5py==2.10.0 \
  protobuf==3.20.3 scipy==1.7.3 keras==2.2.4 matplotlib==3.5.3
"$folder/bin/pip" install -q --no-compile --no-deps keras-lr-finder==0.1
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= MPLBACKEND=Agg
cd "$folder"  # where it keeps the weights
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import sys

import keras
import numpy as np
import tensorflow as tf
from keras_lr_finder import LRFinder
from pkg_resources import get_distribution

random = np.random.RandomState(0)
x, y = random.uniform(-1, 1, (64, 3)), random.uniform(1, 2, (64, 1))
model = keras.models.Sequential([keras.layers.Dense(1, input_shape=(3,))])
model.compile(keras.optimizers.Adam(lr=0.01), "mse")
start = model.get_weights()
LRFinder(model).find(x, y, start_lr=1e-4, end_lr=10, batch_size=4, epochs=1)
optimizer = model.optimizer
restored = all(np.array_equal(a, b) for a, b in zip(start, model.get_weights()))
rate = round(float(keras.backend.get_value(optimizer.lr)), 6)
iterations = int(keras.backend.get_value(optimizer.iterations))
largest = max(float(np.abs(w).max()) for w in optimizer.get_weights()[1:])
versions = "tensorflow", tf.__version__, "keras-lr-finder", get_distribution("keras-lr-finder").version
print("keras", keras.__version__, *versions)
print("the weights are those before the search:", restored, "| the rate:", rate)
print("iterations:", iterations, "| the largest moment: %.3g" % largest)
found = restored and rate == 0.01 and iterations > 10 and largest > 0.1
sys.exit(0 if found else "The behavior has changed.")
PYTHON
