"""What `load_model` says where only `keras_accum` has been imported, and no class of it."""

import re
import subprocess
import sys

import hosts
import pytest
from cases import once_on_keras3, thorough
from training import compiled, dense_model

PROGRAM = f"""
import importlib
import sys

import keras_accum
{hosts.IMPORT_KERAS}

keras.backend.set_floatx("{hosts.FLOATX}")
try:
    keras.models.load_model(sys.argv[1])
except Exception as error:
    print("refused:", str(error).splitlines()[0])
else:
    print("loaded")
importlib.import_module("keras_accum.{hosts.HOST}")
print("updates:", keras.models.load_model(sys.argv[1]).optimizer.completed_updates)
"""

# By the end of a file: what the message must have in it. Only the classes of Keras 3's files are
# looked for by a module at all, and Keras imports none but its own.
SAID = {
    "keras3": {".keras": "Could not locate class 'AdamAccumulate'.*keras_accum.keras3"},
    "tf_keras": {
        ".keras": "Could not deserialize class 'AdamAccumulate'.*keras_accum.tf_keras",
        ".h5": "Unknown optimizer: 'keras_accum>AdamAccumulate'",
    },
    "keras2": {".h5": "Unknown optimizer: AdamAccumulate"},
}


@thorough
@once_on_keras3
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("end", SAID[hosts.HOST])
def test_the_message_has_the_module(end, tmp_path):
    path = str(tmp_path / f"model{end}")
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=2))
    hosts.build(model)
    model.save(path)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, path]
    said = subprocess.check_output(command).decode()
    if hosts.IMPORT_KERAS == "from tensorflow import keras" and end == ".keras":
        assert "loaded\n" in said  # by the module that the file names
    else:
        assert re.search(f"refused: .*{SAID[hosts.HOST][end]}", said)
    assert "updates: 0" in said
