#!/usr/bin/env bash
# Expectation: on TensorFlow, the first `fit` traces a compiled train step once, as a later one doesn't at all.
# What happens: it traces the step twice. The first trace makes the optimizer's variables and those of metrics,
# and TensorFlow traces again without them. On JAX, Keras makes them before. If you call `optimizer.build`, and
# with metrics also `evaluate` on one batch, there is one trace.
# Why it matters: tracing takes most of a first `fit`. With 148 variables it takes 0.6 to 0.8 of the time.
# Source: https://github.com/keras-team/keras/blob/master/keras/src/backend/tensorflow/trainer.py
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile keras==3.15.1 tensorflow==2.21.0
KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 "$folder/bin/python" -W ignore - <<'PYTHON'
import sys
import keras
import numpy as np
import tensorflow as tf

x, y = np.ones((20, 3), "float32"), np.ones((20, 1), "float32")


def count(builds, metrics=(), evaluates=False):
    traces = []

    def loss(y_true, y_pred):
        traces.append(y_pred)
        return (y_true - y_pred) ** 2

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", loss, metrics=list(metrics), jit_compile=False)
    if builds:
        model.optimizer.build(model.trainable_variables)
    if evaluates:
        model.evaluate(x[:5], y[:5], verbose=0)
        traces.clear()
    model.fit(x, y, batch_size=5, verbose=0)
    return len(traces)


print("keras", keras.__version__, "tensorflow", tf.__version__)
found = count(False), count(True), count(True, ["mae"]), count(True, ["mae"], True)
print("traces of the step: as usual, with a built optimizer, the same with metrics, after evaluate")
print(*found)
sys.exit(0 if found == (2, 1, 2, 1) else "The behavior has changed.")
PYTHON
