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
OF_A_FRAMEWORK = FRAMEWORKS | {"keras3", "keras2", "micro_batches"}


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
PROJECT = Path(__file__).resolve().parents[2]  # an installed package has no page
PAGE = (PROJECT / "keras_accum/README.md").read_text("utf-8").split("## One gradient")[0]
ROWS = re.findall(r"^\| (\d+) \| (.*?) \|", PAGE, re.M)
LAYERS = {
    name.rstrip("/"): int(row) for row, names in ROWS for name in re.findall("`(.+?)`", names)
}


def layer_of(name):
    """The layer of a file: its own, or that of its folder."""
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
    assert {"window", "pending", "state/__init__"} <= {*imports_of("engine.py")}
    found = [
        f"{name} imports {file}"
        for name in MODULES
        for file in imports_of(name)
        if layer_of(file) < layer_of(name[: -len(".py")])
    ]
    assert found == []


def test_what_is_below_keras_src_is_not_used():
    """It moves between versions of Keras 3."""
    text = {name: path.read_text("utf-8") for name, path in MODULES.items()}
    assert [n for n in text if n.startswith("keras3/") and "keras.src" in text[n]] == []


# -- what changes a framework ----------------------------------------------------------------------


def is_of_framework(node, names):
    """True for a class or a module of a framework, or a part of it, but not for an instance."""
    if isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        is_part = called in ("getattr", "vars") and is_of_framework(node.args[0], names)
        return is_part or called.startswith("import_")
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        is_framework = getattr(node, "attr", "") in FRAMEWORKS  # as in `host.keras`
        return is_framework or is_of_framework(node.value, names)
    return isinstance(node, ast.Name) and node.id in names


def names_of_frameworks(tree, names=FRAMEWORKS):
    """Return these names, and those that a file gives to classes and modules of frameworks."""
    names = {*names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in FRAMEWORKS:
            names.update(alias.asname or alias.name for alias in node.names)
        if isinstance(node, ast.Import):
            names.update(alias.asname for alias in node.names if alias.name in FRAMEWORKS)
        if isinstance(node, ast.Assign) and is_of_framework(node.value, names):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def changes(tree, names):
    """True if a file may assign to a class or a module of a framework."""
    for node in ast.walk(tree):
        is_written = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        owner = getattr(node, "value", None) if is_written else None
        if isinstance(node, ast.Call):
            if getattr(node.func, "id", "") in ("setattr", "delattr"):
                if getattr(node.args[0], "id", "") != "self":  # of what is there, nothing is known
                    return True
            if getattr(node.func, "attr", "") in ("update", "setdefault", "pop"):
                owner = node.func.value
        if owner is not None and is_of_framework(owner, names):
            return True
    return False


CHANGES = """
    host.keras.callbacks.CallbackList.on_train_begin = begin
    of_keras = host.keras.callbacks.CallbackList; of_keras.on_train_begin = begin
    import tf_keras as k; k.Model.compile: object = compile
    lib = importlib.import_module("saving_lib"); del lib.visits
    setattr(wrapper, name, _of_inner(name))
    vars(keras.Model)["compile"] = compile
    vars(keras.Model).update(compile=compile)
    from keras.saving import lib; lib.visits, other = visits, None
"""


def test_one_file_changes_keras():
    """No other file assigns to classes and modules of a framework."""
    for line in CHANGES.strip().splitlines():
        tree = ast.parse(line.strip())
        assert changes(tree, names_of_frameworks(tree)), line
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}
    of_tf_keras = names_of_frameworks(trees["tf_keras/library.py"])
    names = {name: names_of_frameworks(tree, of_tf_keras) for name, tree in trees.items()}
    assert [name for name in trees if changes(trees[name], names[name])] == ["patches.py"]
