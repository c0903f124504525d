#!/usr/bin/env bash
# Expectation: saving a model changes nothing in it, so two files of one model hold the same optimizer.
# What happens: in Keras 3.15.1, saving as HDF5 takes the optimizer out of the model's own record of how it
# was compiled. Each later `.keras` file lacks it, and loads with RMSprop at its default rate, with a warning
# about a number of variables alone. Keras's nightly of October 2026 copies the record.
# Why it matters: a ModelCheckpoint for `.h5` beside one for `.keras` is enough. A training that is resumed
# from the second file goes on without Adam's moments, and without accumulation. Save `.keras` alone, or
# compile the model again with its own optimizer before you save.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile keras==3.15.1 jax==0.10.2 numpy==2.4.6 h5py==3.16.0
KERAS_BACKEND=jax "$folder/bin/python" - "$folder" <<'PYTHON'
import sys
import warnings

import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(gradient_accumulation_steps=4)
model.compile(optimizer, loss=keras.losses.MeanSquaredError())
model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)
path, found = sys.argv[1] + "/model.keras", []


def load_again():
    model.save(path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = keras.models.load_model(path).optimizer
    found.append((type(loaded).__name__, loaded.gradient_accumulation_steps))
    print("the .keras file has", *found[-1], "| warnings:", [str(w.message)[:60] for w in said])


print("keras", keras.__version__)
load_again()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that HDF5 is an old format
    model.save(sys.argv[1] + "/model.h5")
print("after a file in HDF5:")
load_again()
print("the model itself still trains with", type(model.optimizer).__name__)
expected = [("Adam", 4), ("RMSprop", None)]
sys.exit(0 if found == expected and model.optimizer is optimizer else "The behavior has changed.")
PYTHON
