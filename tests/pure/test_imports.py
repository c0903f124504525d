"""`import keras_accum` imports no framework until a class is asked for."""

import subprocess
import sys

import pytest

HOST_FREE = (
    "rules window arguments docs pending base states warn callbacks.base callbacks.monitor "
    "callbacks.partial_window callbacks.python_gate callbacks.weights"
).split()
FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "jax", "torch", "numpy"}


@pytest.mark.parametrize("module", ["", *(f".{name}" for name in HOST_FREE)])
def test_import_needs_no_framework(module):
    program = f"import sys, keras_accum{module}; print(*set(sys.modules) & {FRAMEWORKS})"
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    needs_numpy = module[1:] in ("base", "callbacks.python_gate", "pending", "states", "window")
    assert job.stdout.strip() == ("numpy" if needs_numpy else "")
