#!/usr/bin/env bash
# Expectation: an optimizer of bert4keras's extend_with_gradient_accumulation with grad_accum_steps=4
# updates the weights after 4 batches, and its bias correction counts updates.
# What happens: the update of 4 batches comes with the fifth, so the last one of a training is lost. The very
# first batch makes an update with a gradient of zeros, and `iterations` counts batches.
# Why it matters: weights that you save or evaluate after a multiple of 4 batches lack their last update, and
# Adam's first real update is about half of the rate: its moments have one gradient, and are divided as if
# they had those of five updates.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.7}" -m venv "$folder"  # TensorFlow 1.15 needs Python 3.7
"$folder/bin/pip" install -q --no-compile tensorflow==1.15.5 numpy==1.18.5 h5py==2.10.0 \
  protobuf==3.20.3 scipy==1.7.3 keras==2.2.4
"$folder/bin/pip" install -q --no-compile --no-deps bert4keras==0.11.5
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import sys

import bert4keras
import keras
import numpy as np
import tensorflow as tf
from bert4keras.optimizers import extend_with_gradient_accumulation

model = keras.models.Sequential([keras.layers.Dense(1, use_bias=False, input_shape=(1,))])
optimizer = extend_with_gradient_accumulation(keras.optimizers.Adam)(lr=0.01, grad_accum_steps=4)
model.compile(optimizer, "mse")
model.set_weights([np.array([[0.5]])])
moved, before = [], 0.5
for _ in range(9):
    model.train_on_batch(np.ones((2, 1)), np.zeros((2, 1)))
    weight = float(model.get_weights()[0][0, 0])
    moved.append(round((before - weight) / 0.01, 3))
    before = weight
iterations = int(keras.backend.get_value(optimizer.iterations))
print("keras", keras.__version__, "tensorflow", tf.__version__, "bert4keras", bert4keras.__version__)
print("the weight moved in 9 batches by these parts of the rate:", moved)
print("iterations:", iterations)
expected = [moved[i] != 0 for i in range(9)] == [i in (4, 8) for i in range(9)]
sys.exit(0 if expected and 0 < moved[4] < 0.6 and iterations == 9 else "The behavior has changed.")
PYTHON
