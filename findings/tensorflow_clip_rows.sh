#!/usr/bin/env bash
# Expectation: tf.clip_by_global_norm(gradients, 5) returns gradients of norm 5 at most, also for those of
# an embedding, which are IndexedSlices; so do clipnorm and global_clipnorm of Keras.
# What happens: a row that occurs twice counts as two rows, although the optimizer adds them up. The norm
# comes out too small, and the clipped gradient has a norm of 6.2.
# Why it matters: adding up IndexedSlices concatenates them, so after a window most rows are repeated.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile tensorflow==2.21.0 keras==3.15.1 numpy==2.4.6
export KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import sys
import keras
import numpy
import tensorflow

embedding = tensorflow.Variable(tensorflow.zeros((3, 1)))
with tensorflow.GradientTape() as tape:  # row 0 occurs in both micro-batches
    first = 3 * tensorflow.reduce_sum(tensorflow.gather(embedding, [0]))
    second = tensorflow.reduce_sum(tensorflow.gather(embedding, [0, 1]) * [[3.0], [4.0]])
    loss = first + second
slices = tape.gradient(loss, embedding)
dense = tensorflow.convert_to_tensor(slices)


def norm(gradient):
    return round(float(tensorflow.norm(tensorflow.convert_to_tensor(gradient))), 3)


def update(gradient, **clipping):
    variable = keras.Variable(numpy.zeros((3, 1), "float32"))
    keras.optimizers.SGD(1.0, **clipping).apply([gradient], [variable])
    return norm(variable.value)


print("tensorflow", tensorflow.__version__, "keras", keras.__version__)
print(f"{type(slices).__name__}, rows {slices.indices.numpy()}, norm {norm(slices)}")
found = norm(slices) == norm(dense) == 7.211
for name, clip in {
    "tf.clip_by_global_norm": lambda g: norm(tensorflow.clip_by_global_norm([g], 5.0)[0][0]),
    "tf.clip_by_norm": lambda g: norm(tensorflow.clip_by_norm(g, 5.0)),
    "clipnorm": lambda g: update(g, clipnorm=5.0),
    "global_clipnorm": lambda g: update(g, global_clipnorm=5.0),
}.items():
    print(f"{name} to 5: dense {clip(dense)}, IndexedSlices {clip(slices)}")
    found = found and clip(dense) == 5.0 and clip(slices) == 6.183
sys.exit(0 if found else "The behavior has changed.")
PYTHON
