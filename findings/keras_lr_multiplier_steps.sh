#!/usr/bin/env bash
# Expectation: keras-lr-multiplier's LRMultiplier(Adam(lr), multipliers) trains each weight with lr times its
# multiplier.
# What happens: each different multiplier makes Adam count the batch once more. With four of them `iterations`
# is 400 after 100 batches, and Adam, which divides its second moment as if it had seen 400 gradients, steps
# nearly twice as far as it was told to. The factor comes near the square root of the number of multipliers
# within a hundred batches, and goes back to 1 in some thousand.
# Why it matters: with a rate for each of twelve layers, steps of fine-tuning are up to three times too long
# (3.0 at batch 50, 1.3 at batch 1000), and `decay` is twelve times too early. Large batches are few, so these
# steps are most of a training.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.7}" -m venv "$folder"  # TensorFlow 1.15 needs Python 3.7
"$folder/bin/pip" install -q --no-compile tensorflow==1.15.5 numpy==1.18.5 h5py==2.10.0 \
  protobuf==3.20.3 scipy==1.7.3 keras==2.2.4
"$folder/bin/pip" install -q --no-compile --no-deps keras-lr-multiplier==0.9.0
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import sys

import keras
import numpy as np
import tensorflow as tf
from keras_lr_multiplier import LRMultiplier
from pkg_resources import get_distribution

K = keras.backend
RATE, MULTIPLIERS = 0.01, {"a": 1.0, "b": 0.5, "c": 0.25, "d": 0.125}


def train(multipliers):
    """Return `iterations`, and the last of 100 steps as parts of each weight's own rate."""
    x = keras.layers.Input((1,))
    parts = [keras.layers.Dense(1, use_bias=False, name=name)(x) for name in MULTIPLIERS]
    model = keras.models.Model(x, keras.layers.add(parts))
    optimizer = keras.optimizers.Adam(lr=RATE)
    # The gradient of each weight is always 1, so each of Adam's steps is as long as its rate.
    model.compile(LRMultiplier(optimizer, multipliers), lambda y, p: K.mean(p, axis=-1))
    for _ in range(100):
        before = model.get_weights()
        model.train_on_batch(np.ones((2, 1)), np.ones((2, 1)))
    steps = [float(b - a) for b, a in zip(before, model.get_weights())]
    rates = [RATE * multipliers.get(name, 1.0) for name in MULTIPLIERS]
    return int(K.get_value(optimizer.iterations)), [round(s / r, 2) for s, r in zip(steps, rates)]


one, four = train({}), train(MULTIPLIERS)
version = get_distribution("keras-lr-multiplier").version
print("keras", keras.__version__, "tensorflow", tf.__version__, "keras-lr-multiplier", version)
print("after 100 batches, iterations and steps as parts of the rates asked for:")
print("with no multiplier", *one, "| with four", *four)
found = one[0] == 100 and four[0] == 400 and all(0.99 < step < 1.01 for step in one[1])
sys.exit(0 if found and all(1.8 < step < 1.95 for step in four[1]) else "The behavior has changed.")
PYTHON
