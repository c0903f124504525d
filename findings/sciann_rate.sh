#!/usr/bin/env bash
# Expectation: SciANN's SciModel(..., optimizer=Adam(0.05)) trains with the rate of this optimizer.
# What happens: `train` has a rate of its own, 0.001 by default, and writes it into the optimizer. And
# `import sciann` switches TensorFlow's eager execution off for the whole program.
# Why it matters: a rate that you raise for a big batch has no effect. Give it to `train` as `learning_rate`.
# Code that needs eager execution, such as an optimizer that counts in Python, fails after the import.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.10}" -m venv "$folder"  # TensorFlow 2.10 needs Python 3.10 or older
"$folder/bin/pip" install -q --no-compile tensorflow-cpu==2.10.1 numpy==1.23.5 scikit-learn==1.1.3 \
  pybtex==0.26.1 matplotlib==3.6.3
"$folder/bin/pip" install -q --no-compile --no-deps sciann==0.6.8.6
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import sys
from importlib.metadata import version

import numpy as np
import tensorflow as tf

eager = [tf.executing_eagerly()]
import sciann  # noqa: E402

eager.append(tf.executing_eagerly())
x = np.linspace(0, 1, 8)[:, None]


def rates(**arguments):
    place = sciann.Variable("x", dtype="float32")
    target = sciann.Functional("u", place, [4], "tanh")
    model = sciann.SciModel(place, target, "mse", tf.keras.optimizers.Adam(0.05))
    seen = set()

    def note(batch, logs):
        seen.add(round(float(tf.keras.backend.get_value(model.model.optimizer.lr)), 6))

    callback = tf.keras.callbacks.LambdaCallback(on_batch_end=note)
    model.train(x, [x], batch_size=4, epochs=2, verbose=0, callbacks=[callback], **arguments)
    return sorted(seen)


default, given = rates(), rates(learning_rate=0.05)
print("sciann", version("sciann"), "tensorflow", tf.__version__)
print("Adam(0.05) trains with the rate", default, "| with learning_rate=0.05 in `train`:", given)
print("eager execution before and after the import:", eager)
found = default == [0.001] and given == [0.05] and eager == [True, False]
sys.exit(0 if found else "The behavior has changed.")
PYTHON
