#!/usr/bin/env bash
# Expectation: tensorflow-similarity's losses for pairs of views (SimSiam, Barlow, VicReg) are means, as all of
# Keras, so each sample twice in a batch gives the same step.
# What happens: VicReg isn't reduced unless you ask for it, so Keras adds up the gradients of all samples:
# with 4 times the batch the step is 4 times as long. Its terms of the whole batch count once per sample, too.
# Why it matters: the learning rate fits one batch size; a rate raised with the batch rises twice. An average
# over micro-batches, which is the usual way to accumulate, is a batch's gradient divided by their number.
# Give it reduction="sum_over_batch_size". The others are means.
# Source: none that we know of
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.10}" -m venv "$folder"  # TensorFlow 2.10 needs Python 3.10 or older
"$folder/bin/pip" install -q --no-compile tensorflow-cpu==2.10.1 numpy==1.23.5
"$folder/bin/pip" install -q --no-compile --no-deps tensorflow-similarity==0.17.1
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$folder/bin/python" -W ignore - 2> "$folder/log" <<'PYTHON' || { tail "$folder/log"; exit 1; }
import sys
import types
from importlib.metadata import distribution, version

import numpy as np
import tensorflow as tf

# Its own __init__ imports plots and an index as well, which need many packages.
package = types.ModuleType("tensorflow_similarity")
package.__path__ = [str(distribution("tensorflow-similarity").locate_file(package.__name__))]
sys.modules[package.__name__] = package
from tensorflow_similarity.losses import Barlow, SimSiamLoss, VicReg  # noqa: E402

keras = tf.keras
random = np.random.default_rng(0)
x, views = random.normal(size=(16, 4)), random.normal(size=(16, 3))


def step(loss, times):
    """Return the length of a step of SGD for a batch that has each sample several times."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(3, input_shape=(4,))])
    model.compile(keras.optimizers.SGD(1e-3), loss)
    start = model.get_weights()
    model.train_on_batch(np.tile(x, (times, 1)), np.tile(views, (times, 1)))
    return max(np.abs(a - b).max() for a, b in zip(start, model.get_weights()))


def steps(loss):
    return [float(round(step(loss, times) / step(loss, 1), 2)) for times in (2, 4)]


print("tensorflow", tf.__version__, "tensorflow-similarity", version("tensorflow-similarity"))
print("with each sample twice, and 4 times, the step is longer by the factors")
found = {type(loss).__name__: steps(loss) for loss in (VicReg(), Barlow(), SimSiamLoss())}
found["VicReg as a mean"] = steps(VicReg(reduction="sum_over_batch_size"))
print("\n".join(f"{name}: {factors}" for name, factors in found.items()))
sums = found.pop("VicReg")
means = all(0.95 < factor < 1.05 for factors in found.values() for factor in factors)
found = means and 1.9 < sums[0] < 2.1 and 3.8 < sums[1] < 4.2
sys.exit(0 if found else "The behavior has changed.")
PYTHON
