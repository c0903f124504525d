#!/usr/bin/env bash
# Expectation: dm-tree and JAX flatten the same structure in the same order; both sort a dict.
# What happens: JAX and keras.tree keep the order of an OrderedDict, and dm-tree sorts it. None, such as a
# missing gradient, is a leaf in dm-tree and keras.tree, and left out by JAX.
# Why it matters: sums kept as a flat list by one library and put back by the other go to the wrong weight,
# silently if shapes agree. Sonnet, TensorFlow Probability and Acme use dm-tree.
# Source: https://github.com/jax-ml/jax/issues/4085
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile dm-tree==0.1.10 jax==0.10.2 keras==3.15.1 numpy==2.4.6
export KERAS_BACKEND=jax JAX_PLATFORMS=cpu
"$folder/bin/python" -W ignore - <<'PYTHON'
import sys
from collections import OrderedDict
from importlib.metadata import version
import jax
import keras
import tree

print("dm-tree", version("dm-tree"), "jax", jax.__version__, "keras", keras.__version__)
gradients = OrderedDict(weight=1.0, bias=2.0)
cases = {"dict": dict(gradients), "OrderedDict": gradients, "None": (3.0, None)}
orders = {}
for name, value in cases.items():
    orders[name] = jax.tree.leaves(value), tree.flatten(value), keras.tree.flatten(value)
    print("{}: JAX {}, dm-tree {}, keras.tree {}".format(name, *orders[name]))
sums = [0.0, 0.0]
for _ in range(4):  # a window
    sums = [total + leaf for total, leaf in zip(sums, tree.flatten(gradients), strict=True)]
mixed = jax.tree.unflatten(jax.tree.structure(gradients), sums)
print("4 times", dict(gradients), "flattened by dm-tree, put back by JAX:", dict(mixed))
found = orders == {
    "dict": ([2.0, 1.0],) * 3,
    "OrderedDict": ([1.0, 2.0], [2.0, 1.0], [1.0, 2.0]),
    "None": ([3.0], [3.0, None], [3.0, None]),
}
sys.exit(0 if found and mixed == {"weight": 8.0, "bias": 4.0} else "The behavior has changed.")
PYTHON
