"""`import keras_accum` imports no framework until a class is asked for."""

import ast
import re
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


# The layers of files and folders, as the page that walks through the code lists them from the top.
PAGE = (PACKAGE / "README.md").read_text("utf-8").split("\n## ")[0]
LISTED = enumerate(re.findall(r"^\d+\. (`.*)$", PAGE, re.M))
LAYERS = {name.rstrip("/"): place for place, row in LISTED for name in re.findall("`(.+?)`", row)}


def layer_of(name):
    """The layer of a file: its own, or that of its folder."""
    name = name[: -len(".py")]
    while name not in LAYERS:
        name = name.rpartition("/")[0]
    return LAYERS[name]


def module_of(path):
    """The file of the package that defines or is what an import names."""
    parts = path.split(".")[1:]
    for end in range(len(parts), -1, -1):
        for ending in (".py", "/__init__.py"):
            name = ("/".join(parts[:end]) + ending).lstrip("/")
            if name in MODULES:
                return name


def imports_of(tree):
    for node in ast.walk(tree):  # also inside of functions
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_import_runs_up():
    assert layer_of("state/lists.py") < layer_of("window.py") == layer_of("said.py")
    assert module_of("keras_accum.state.lists.fitted") == "state/lists.py"
    assert module_of("keras_accum.where_else") == "__init__.py"
    assert {layer_of(name) for name in MODULES} == set(range(10))
    found = [
        f"{name} imports {path}"
        for name, file in MODULES.items()
        for path in imports_of(ast.parse(file.read_text("utf-8")))
        if path.startswith("keras_accum") and layer_of(module_of(path)) < layer_of(name)
    ]
    assert found == []


def test_what_is_below_keras_src_is_not_used():
    """It moves between versions of Keras 3."""
    text = {name: path.read_text("utf-8") for name, path in MODULES.items()}
    assert [n for n in text if n.startswith("keras3/") and "keras.src" in text[n]] == []
