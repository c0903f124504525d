#!/usr/bin/env bash
# Expectation: Adam's first update is the learning rate, for each weight.
# What happens: Keras 2.2.4 and 2.3.1 give TensorFlow 1.15.5 an update without an order. In most builds of
# the same model, Adam's bias correction reads `iterations` after it was raised, so the first update is
# 0.744 of the rate. Which of both you get can change from build to build.
# Why it matters: two trainings by the stock optimizer from one start can be far apart, so whoever compares
# accumulation with the big batch there sees a difference that isn't accumulation's. Compare with NumPy.
# Source: https://github.com/keras-team/keras/issues/10769 on the order of updates in general, and
# https://github.com/tensorflow/tensorflow/issues/28215 on Nadam
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.7}" -m venv "$folder"  # TensorFlow 1.15 needs Python 3.7
"$folder/bin/pip" install -q --no-compile tensorflow==1.15.5 numpy==1.18.5 h5py==2.10.0 \
  protobuf==3.20.3 scipy==1.7.3 keras==2.2.4
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
cat > "$folder/first_updates.py" <<'PYTHON'
import sys

import keras
import numpy as np
import tensorflow as tf

x, y = np.ones((8, 3)), np.ones((8, 2))
found = []
for build in range(16):
    keras.backend.clear_session()
    layers = [keras.layers.Dense(4, input_shape=(3,)), keras.layers.Dense(2)]
    model = keras.models.Sequential(layers)
    model.compile(keras.optimizers.Adam(lr=0.01), "mse")
    model.set_weights([np.full(w.shape, 0.5) for w in model.get_weights()])
    start = model.get_weights()[0]
    model.train_on_batch(x, y)
    found.append(round(float(np.abs(model.get_weights()[0] - start).max() / 0.01), 3))
print("keras", keras.__version__, "tensorflow", tf.__version__)
print("Adam's first update, in parts of the rate, in 16 builds:", found)
sys.exit(0 if 0.744 in found and set(found) <= {0.744, 1.0} else "The behavior has changed.")
PYTHON
"$folder/bin/python" -W ignore "$folder/first_updates.py" 2> "$folder/log" || { tail "$folder/log"; exit 1; }
"$folder/bin/pip" install -q --no-compile keras==2.3.1
"$folder/bin/python" -W ignore "$folder/first_updates.py" 2> "$folder/log" || { tail "$folder/log"; exit 1; }
