"""`import keras_accum` imports no framework until a class is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

import keras_accum

HOST_FREE = (
    "rules window arguments docs pending base states warn train_functions callbacks.base "
    "callbacks.monitor callbacks.partial_window callbacks.python_gate callbacks.weights"
).split()
WITHOUT_NUMPY = "", "rules", "arguments", "docs", "warn"
FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "jax", "torch", "numpy"}


@pytest.mark.parametrize("module", ["", *(f".{name}" for name in HOST_FREE)])
def test_import_needs_no_framework(module):
    program = f"import sys, keras_accum{module}; print(*set(sys.modules) & {FRAMEWORKS})"
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    assert job.stdout.strip() == ("" if module[1:] in WITHOUT_NUMPY else "numpy")


def test_only_the_public_module_of_a_host_imports_callbacks():
    package = Path(keras_accum.__file__).parent
    names = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    uses = {name for name in names if "keras_accum.callbacks" in (package / name).read_text()}
    outside = {name for name in uses if not name.startswith("callbacks/")}
    assert outside == {f"{host}/__init__.py" for host in ("keras2", "keras3", "tf_keras")}


def test_nothing_private_of_keras_3_is_imported():
    """What is below `keras.src` moves from one version to the next."""
    package = Path(keras_accum.__file__).parent / "keras3"
    assert [path.name for path in package.glob("*.py") if "keras.src" in path.read_text()] == []
