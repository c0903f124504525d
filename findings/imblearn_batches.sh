#!/usr/bin/env bash
# Expectation: each batch of imbalanced-learn's BalancedBatchGenerator is balanced, each epoch draws other
# samples of the larger class, and all drawn samples are trained on.
# What happens: it draws once, when it is made, and shuffles all: an epoch is balanced, its batches aren't.
# What doesn't fill the last batch is left out, the same samples in each epoch.
# Why it matters: batches of 4 have 1 to 3 samples of the smaller class. Which samples are never trained on
# depends on the batch size, so a big batch and its micro-batches train on other data: choose a size that
# divides the number of drawn samples.
# Source: https://github.com/scikit-learn-contrib/imbalanced-learn/issues/713,
# https://github.com/scikit-learn-contrib/imbalanced-learn/pull/1204
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile imbalanced-learn==0.14.2 scikit-learn==1.8.0 keras==3.15.1 \
  jax==0.10.2 numpy==2.4.6
KERAS_BACKEND=jax "$folder/bin/python" -W ignore - <<'PYTHON'
import sys

import imblearn
import keras
import numpy as np
from imblearn.keras import BalancedBatchGenerator

x = np.arange(60.0)[:, None]
y = np.arange(60) % 3 == 0  # 20 of 60


def epoch(batch_size):
    batches = BalancedBatchGenerator(x, y, batch_size=batch_size, random_state=0)
    seen = [[batches[i] for i in range(len(batches))] for _ in range(2)]
    same = all(np.array_equal(a, b) for (a, _), (b, _) in zip(*seen))
    return [int(labels.sum()) for _, labels in seen[0]], sum(len(a) for a, _ in seen[0]), same


print("imbalanced-learn", imblearn.__version__, "keras", keras.__version__)
big, micro = epoch(16), epoch(4)
print("of 16 samples, so many are of the smaller class:", big[0], "| samples of 40:", big[1])
print("of 4:", micro[0], "| samples of 40:", micro[1], "| the next epoch is the same:", micro[2])
found = big[1] == 32 and micro[1] == 40 and big[2] and micro[2]
found = found and set(micro[0]) != {2} and set(big[0]) != {8}
sys.exit(0 if found else "The behavior has changed.")
PYTHON
