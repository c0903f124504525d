"""`import keras_accum` imports no framework until a class is asked for."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_accum

PACKAGE = Path(keras_accum.__file__).parent
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "jax", "torch", "numpy"}
# A file of a Keras or of a backend has its name, or stands in a folder of its name.
OF_A_FRAMEWORK = FRAMEWORKS | {"keras3", "keras2"}


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


PROGRAM = """
import sys
hooks = [*sys.meta_path], [*sys.path_hooks]
import {}
assert hooks == ([*sys.meta_path], [*sys.path_hooks])
assert "keras_accum.keras3.optimizers" not in sys.modules
"""


# Each Keras is one that we can't use: the first has no backend, and the second is too old.
@pytest.mark.parametrize(
    "names, version", [("keras_accum, keras", "3.99.0"), ("keras, keras_accum", "3.6.0")]
)
def test_import_hooks_into_no_other_import(names, version, tmp_path):
    """An error of ours never ends the import of a Keras."""
    (tmp_path / "keras.py").write_text(f"__version__ = {version!r}", "utf-8")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-c", PROGRAM.format(names)]
    subprocess.check_call(command, env={**os.environ, "PYTHONPATH": paths})


# The layers of files and folders, as the page that walks through the code lists them from the top.
PROJECT = Path(__file__).resolve().parents[2]  # an installed package has no page
PAGE = (PROJECT / "keras_accum/README.md").read_text("utf-8").split("## One gradient")[0]
ROWS = re.findall(r"^\| (\d+) \| (.*?) \|", PAGE, re.M)
LAYERS = {n.rstrip("/"): int(row) for row, names in ROWS for n in re.findall("`(.+?)`", names)}


def layer_of(name):
    """The layer of a file: its own, or that of its folder."""
    assert name, "a file has no layer in keras_accum/README.md"
    return LAYERS[name] if name in LAYERS else layer_of(name.rpartition("/")[0])


def file_of(name):
    """The file that an import names, or that has what the import names."""
    for file in (name, f"{name}/__init__".lstrip("/")):
        if f"{file}.py" in MODULES:
            return file
    return file_of(name.rpartition("/")[0])


def imports_of(name):
    """The files of the package that a file imports when it runs, also inside of functions."""
    tree = ast.parse(MODULES[name].read_text("utf-8"))
    tests = [node for node in ast.walk(tree) if getattr(node, "test", None)]
    unrun = [n for n in tests if getattr(n.test, "id", "") == "TYPE_CHECKING" for n in n.body]
    for node in {*ast.walk(tree)} - {*unrun}:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                path = f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".").split(".")
                if path[0] == "keras_accum":
                    yield file_of("/".join(path[1:]))


def test_no_import_runs_up():
    """A module imports from its own layer and lower ones, as keras_accum/README.md has them."""
    found = {*imports_of("engine/accumulation.py")}
    assert {"engine/window", "engine/pending", "engine/state/__init__"} <= found
    found = [
        f"{name} imports {file}"
        for name in MODULES
        for file in imports_of(name)
        if layer_of(file) < layer_of(name[: -len(".py")])
    ]
    assert found == []


def test_what_is_below_keras_src_is_not_used():
    """It moves between versions of Keras. One file needs Keras's masks, and checks them by name."""
    text = {name: path.read_text("utf-8") for name, path in MODULES.items()}
    private = re.compile(r"keras\.(src|engine|python)\b|python\.keras\b")
    assert [n for n in text if private.search(text[n])] == ["keras3/masks.py"]
