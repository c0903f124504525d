#!/usr/bin/env bash
# Expectation: a copy of a trained trieste model trains on, as the model itself. Trieste's own record of an
# optimization has such copies.
# What happens: with the Adam that trieste asks for and TensorFlow 2.21, the copy of a DeepGaussianProcess
# fails in `optimize`. Its optimizer is copied as built for the first model's variables, and knows no others.
# Why it matters: whoever resumes from a copy needs a fresh optimizer, and loses Adam's moments.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile tensorflow==2.21.0 tf_keras==2.21.0 scipy==1.17.1 \
  numpy==2.4.6 dill==0.3.9 greenlet==3.5.6 lark==1.3.1 multipledispatch==1.0.0 deprecated==1.3.1 \
  tabulate==0.10.0 dm-tree==0.1.10 decorator==5.3.1 cloudpickle==3.1.3
"$folder/bin/pip" install -q --no-compile --no-deps gpflow==2.11.2 gpflux==0.4.5 trieste==4.5.1 \
  check-shapes==1.1.1 dropstackframe==0.1.1 tensorflow-probability==0.23.0
export TF_USE_LEGACY_KERAS=1 TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import copy
import sys
from importlib.metadata import version

import numpy as np
import tensorflow as tf
import tf_keras
from trieste.data import Dataset
from trieste.models.gpflux import DeepGaussianProcess, build_vanilla_deep_gp
from trieste.models.optimizer import KerasOptimizer
from trieste.space import Box

tf_keras.backend.set_floatx("float64")
points = tf.constant(np.random.default_rng(0).uniform(size=(20, 2)))
data = Dataset(points, tf.reduce_sum(points**2, axis=1, keepdims=True))
space = Box([0, 0], [1, 1])
settings = {"batch_size": 10, "epochs": 2, "verbose": 0}


def again(is_copied):
    make = lambda: build_vanilla_deep_gp(data, space, num_layers=1)  # noqa: E731
    model = DeepGaussianProcess(make, KerasOptimizer(tf_keras.optimizers.Adam(0.01), settings))
    model.optimize(data)
    model = copy.deepcopy(model) if is_copied else model
    try:
        model.optimize(data)
        return "trains"
    except KeyError as error:
        return "KeyError" if "recognize variable" in str(error) else "another error"


print("trieste", version("trieste"), "tf_keras", tf_keras.__version__, "tensorflow", tf.__version__)
found = again(False), again(True)
print("the model itself:", found[0], "| its copy:", found[1])
expected = found[0] == "trains" and found[1] == "KeyError"
sys.exit(0 if expected else "The behavior has changed.")
PYTHON
