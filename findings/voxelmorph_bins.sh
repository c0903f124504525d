#!/usr/bin/env bash
# Expectation: voxelmorph's MutualInformation().loss returns a value for each pair of images, which depends on
# this pair alone, so that its mean over a batch is that over the batch's parts.
# What happens: it counts values in bins that reach from the smallest to the largest value of the whole batch. A
# pair next to a brighter one has coarser bins, so its loss and gradient change. Bins of your own fail.
# Why it matters: another batch size is another loss, and so is a sum of gradients over parts of a batch:
# the usual way to train on volumes that fit into memory one by one. tf.map_fn over the pairs keeps them apart.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.10}" -m venv "$folder"  # TensorFlow 2.10 needs Python 3.10 or older
"$folder/bin/pip" install -q --no-compile tensorflow-cpu==2.10.1 numpy==1.23.5 scipy==1.10.1 \
  matplotlib==3.6.3 scikit-image==0.20.0 nibabel==5.2.1 tqdm==4.70.1 setuptools==65.5.0
"$folder/bin/pip" install -q --no-compile --no-deps voxelmorph==0.2 neurite==0.2 pystrum==0.4
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= MPLBACKEND=Agg
export VXM_BACKEND=tensorflow NEURITE_BACKEND=tensorflow
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import sys
from importlib.metadata import version

import numpy as np
import tensorflow as tf
import voxelmorph

random = np.random.default_rng(0)
fixed, moved = random.uniform(size=(2, 1, 16, 16, 1)).astype("float32")
loss = voxelmorph.losses.MutualInformation().loss


def apart(y_true, y_pred):
    each = lambda pair: loss(pair[0][None], pair[1][None])[0]  # noqa: E731
    return tf.map_fn(each, (y_true, y_pred), fn_output_signature=tf.float32)


def of_first(function, *others):
    """Return the first pair's loss and the norm of its gradient, in a batch with others."""
    y_true, y_pred = (np.concatenate([a, *(b * a for b in others)]) for a in (fixed, moved))
    with tf.GradientTape() as tape:
        tape.watch(y_pred := tf.constant(y_pred))
        value = function(tf.constant(y_true), y_pred)[0]
    gradient = tape.gradient(value, y_pred)[0]
    return [round(float(v), 4) for v in (value, tf.norm(gradient))]


versions = (f"{name} {version(name)}" for name in ("voxelmorph", "neurite"))
print("tensorflow", tf.__version__, *versions)
print("the loss of a pair, and the norm of its gradient:")
alone, twice, brighter = of_first(loss), of_first(loss, 1), of_first(loss, 4)
print("alone", alone, "| with its copy", twice, "| with one 4 times as bright", brighter)
kept = of_first(apart, 4)
print("with one 4 times as bright, by tf.map_fn:", kept)
changed = brighter[1] > 2 * alone[1]
sys.exit(0 if changed and twice[0] == alone[0] and kept == alone else "The behavior has changed.")
PYTHON
