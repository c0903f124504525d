#!/usr/bin/env bash
# Expectation: `custom_objects` gives another class for a saved optimizer by the name of its class, as it does
# for layers; a key that doesn't fit is an error.
# What happens: Keras 3.15.1 wants a stock optimizer in lower case, "adam", since it writes "Adam" and looks
# for "adam". Keras's nightly of October 2026 wants "Adam". The other key loads the stock class: silently.
# Why it matters: whoever opens files of Adam with a class that accumulates gets a training without it after
# an upgrade, with the same line. Give both keys.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
packages="jax==0.10.2 numpy==2.4.6 h5py==3.16.0"
"$folder/bin/pip" install -q --no-compile --target "$folder/released" keras==3.15.1 $packages
"$folder/bin/pip" install -q --no-compile --target "$folder/nightly" keras-nightly==3.16.0.dev2026102704 $packages
cat > "$folder/run.py" <<'PYTHON'
import sys
import warnings

import keras
import numpy as np

warnings.simplefilter("ignore")  # that HDF5 is an old format
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(), loss=keras.losses.MeanSquaredError())
model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)
model.save(sys.argv[1] + "/model.h5")


class Mine(keras.optimizers.Adam):
    pass


def load(key):
    loaded = keras.models.load_model(sys.argv[1] + "/model.h5", custom_objects={key: Mine})
    return type(loaded.optimizer).__name__


found = {key: load(key) for key in ("adam", "Adam")}
print("keras", keras.__version__)
for key, name in found.items():
    print(f"custom_objects={{{key!r}: Mine}} loads", name)
right = "Adam" if "dev" in keras.__version__ else "adam"
expected = {key: "Mine" if key == right else "Adam" for key in found}
sys.exit(0 if found == expected else "The behavior has changed.")
PYTHON
for keras in released nightly; do
  PYTHONPATH="$folder/$keras" KERAS_BACKEND=jax "$folder/bin/python" "$folder/run.py" "$folder" 2> "$folder/said" || { cat "$folder/said"; exit 1; }
done
