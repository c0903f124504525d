"""`import keras_accum` imports no framework until a class is asked for."""

import subprocess
import sys
from pathlib import Path

import keras_accum

PACKAGE = Path(keras_accum.__file__).parent
MODULES = {path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py")}
FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "jax", "torch", "numpy"}
# A file of a Keras or of a backend has its name, or stands in a folder of its name.
OF_A_FRAMEWORK = FRAMEWORKS | {"keras3", "keras2", "window_statistics"}
HOST_FREE = {name for name in MODULES if not OF_A_FRAMEWORK & set(name.split("/"))}


def imported(modules):
    """The frameworks that a new process has imported with these modules."""
    names = ", ".join(f"keras_accum.{name}".replace("/", ".") for name in sorted(modules))
    program = f"import sys, {names}; print(*set(sys.modules) & {FRAMEWORKS})"
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    return job.stdout.strip()


def test_import_needs_no_framework():
    assert imported({"__init__", "host"}) == ""
    assert len(HOST_FREE) > 25 and imported(HOST_FREE) == "numpy"


def sources(pattern):
    files = PACKAGE.glob(pattern)
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in files}


def test_only_the_public_module_of_a_host_imports_callbacks():
    uses = {name for name, text in sources("**/*.py").items() if "keras_accum.callbacks" in text}
    outside = {name for name in uses if not name.startswith("callbacks/")} - {"keras3/torch.py"}
    of_tf_keras = {"tf_keras/__init__.py", "tf_keras/callbacks.py"}
    assert outside == {"keras2/__init__.py", "keras3/__init__.py", *of_tf_keras}


def test_nothing_private_of_keras_3_is_imported():
    """What is below `keras.src` moves from one version to the next."""
    assert [name for name, text in sources("keras3/*.py").items() if "keras.src" in text] == []
