"""What `import keras_accum` brings along: nothing, until a class is asked for."""

import subprocess
import sys

import pytest

HOST_FREE = "_rules _window _arguments _callbacks _monitor _host_gate _optimizer _state".split()
FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "jax", "torch", "numpy"}


@pytest.mark.parametrize("module", ["", *(f".{name}" for name in HOST_FREE)])
def test_import_needs_no_framework(module):
    program = f"import sys, keras_accum{module}; print(*set(sys.modules) & {FRAMEWORKS})"
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    needs_numpy = module in ("._host_gate", "._optimizer", "._state", "._window")
    assert job.stdout.strip() == ("numpy" if needs_numpy else "")
