"""`import keras_accum` imports no framework until a class is asked for."""

import subprocess
import sys
from pathlib import Path

import keras_accum

PACKAGE = Path(keras_accum.__file__).parent
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "jax", "torch", "numpy"}
# A file of a Keras or of a backend has its name, or stands in a folder of its name.
OF_A_FRAMEWORK = FRAMEWORKS | {"keras3", "keras2", "micro_batches", "window_statistics"}


def imported(modules):
    """The frameworks that a new process has imported with these modules."""
    names = ", ".join(f"keras_accum.{name}".replace("/", ".") for name in sorted(modules))
    program = f"import sys, {names}; print(*set(sys.modules) & {FRAMEWORKS})"
    return subprocess.check_output([sys.executable, "-c", program]).decode().strip()


def test_import_needs_no_framework():
    assert imported({"__init__", "host"}) == ""
    names = {name[: -len(".py")] for name in MODULES}
    host_free = {name for name in names if not OF_A_FRAMEWORK & set(name.split("/"))}
    assert len(host_free) > 25 and imported(host_free) == "numpy"


def test_what_a_folder_may_import():
    """Hosts don't know callbacks, and what is below `keras.src` moves between versions."""
    text = {name: path.read_text("utf-8") for name, path in MODULES.items()}
    uses = {name for name in text if "keras_accum.callbacks" in text[name]}
    outside = {name for name in uses if not name.startswith("callbacks/")} - {"keras3/torch.py"}
    of_tf_keras = {"tf_keras/__init__.py", "tf_keras/callbacks.py"}
    assert outside == {"keras2/__init__.py", "keras3/__init__.py", *of_tf_keras}
    assert [n for n in text if n.startswith("keras3/") and "keras.src" in text[n]] == []
