"""What `load_model` says where only `keras_accum` has been imported, and no class of it."""

import os
import subprocess
import sys
import textwrap

import hosts
import pytest
from cases import once_on_keras3, thorough
from training import LENGTH, MICRO, compiled, dense_model, fit

PROGRAM = """
import importlib
import sys

import keras_accum
{import_keras}

path, host, floatx = sys.argv[1:]
keras.backend.set_floatx(floatx)
try:
    model = keras.models.load_model(path)
except Exception as error:
    print("refused:", error)
else:
    print("loaded")
importlib.import_module("keras_accum." + host)
print("updates:", keras.models.load_model(path).optimizer.completed_updates)
"""

# By the end of a file: what the message must have in it. Only the classes of Keras 3's files are
# looked for by a module at all, and Keras imports none but its own.
SAID = {
    "keras3": {".keras": ["Could not locate class 'AdamAccumulate'", "keras_accum.keras3"]},
    "tf_keras": {
        ".keras": ["Could not deserialize class 'AdamAccumulate'", "keras_accum.tf_keras"],
        ".h5": ["Unknown optimizer: 'keras_accum>AdamAccumulate'"],
    },
    "keras2": {".h5": ["Unknown optimizer: AdamAccumulate"]},
}


@thorough
@once_on_keras3
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("end", SAID[hosts.HOST])
def test_the_message_has_the_module(end, tmp_path):
    path = str(tmp_path / f"model{end}")
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=LENGTH))
    fit(model, MICRO, epochs=1)
    model.save(path)
    program = textwrap.dedent(PROGRAM).format(import_keras=hosts.IMPORT_KERAS)
    command = [sys.executable, "-W", "ignore", "-c", program, path, hosts.HOST, hosts.FLOATX]
    found = subprocess.run(command, env=os.environ.copy(), stdout=subprocess.PIPE, check=True)
    first, last = found.stdout.decode().splitlines()[0], found.stdout.decode().splitlines()[-1]
    if hosts.IMPORT_KERAS == "from tensorflow import keras" and end == ".keras":
        assert first == "loaded"  # by the module that the file names
    else:
        assert first.startswith("refused: ")
        for words in SAID[hosts.HOST][end]:
            assert words in first
    assert last == f"updates: {model.optimizer.completed_updates}"
