"""The defects of Keras that docs/upstream reports are still there.

Each script about Keras's own accumulation runs as it is, and with our classes in place of Keras's
own. Ours give the big batch, so what a script expects can be had.
"""

import re
import subprocess
import sys
import types
import unittest
from pathlib import Path

import hosts
import pytest
from cases import once, thorough
from hosts import keras

FOLDER = hosts.PROJECT / "docs/upstream"
SCRIPTS = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.py"))}
# The scripts of one backend. JAX runs all others.
BACKENDS = {
    **dict.fromkeys(["mirrored_strategy", "repeated_rows"], "tensorflow"),
    "same_path": "torch",
}
HERE = [name for name in SCRIPTS if BACKENDS.get(name, "jax") == hosts.BACKEND]


@once
def test_the_page_has_every_script():
    page = (FOLDER / "README.md").read_text("utf-8")
    assert SCRIPTS and set(re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\)", page, re.M)) == set(SCRIPTS)


def error_of(script, name):
    """Return the error of a script as text. Collectives of TensorFlow need a process for them."""
    if name == "mirrored_strategy":
        job = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        return job.stderr if job.returncode else ""
    try:
        exec(script, {})
    except AssertionError as error:
        return repr(error)
    return ""


@thorough
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="defects of Keras 3")
@pytest.mark.parametrize("name", HERE)
def test_the_defect_is_still_there(name):
    hosts.set_floatx("float32")
    script = SCRIPTS[name]
    if "gradient_accumulation_steps=" in script:
        own = r"keras\.optimizers\.(\w+)\((.*)gradient_accumulation_steps="
        ours, count = re.subn(own, r"keras_accum.\1Accumulate(\2accum_iters=", script)
        assert count == 1
        ours = ours.replace("import keras\n", "import keras, keras_accum\n", 1)
        assert not error_of(ours, name)
    error = "\nRuntimeError: " if name == "mirrored_strategy" else "AssertionError"
    mended = f"Keras {keras.__version__} has fixed {name}: say so in docs/upstream/README.md"
    assert error in error_of(script, name), mended


# The methods that a patch changes, by the script that shows the defect.
PATCHES = {
    "schedule": ("keras/src/optimizers/base_optimizer.py", "_get_current_learning_rate"),
    "copies": ("keras/src/backend/jax/optimizer.py", "_backend_apply_gradients"),
}


@thorough
@once
@pytest.mark.parametrize("name", PATCHES)
def test_the_patch_mends_the_defect(name, tmp_path, monkeypatch):
    """It applies to the Keras that is installed, and Keras's tests of its accumulation pass."""
    changed, method = PATCHES[name]
    tests = "keras/src/optimizers/optimizer_test.py"
    installed = Path(keras.__file__).parent.parent
    for file in (changed, tests):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((installed / file).read_text("utf-8"), "utf-8")
    subprocess.run(["git", "apply", str(FOLDER / f"{name}.patch")], cwd=tmp_path, check=True)
    found = {}
    for file in (changed, tests):
        found[file] = types.ModuleType("patched")
        exec((tmp_path / file).read_text("utf-8"), vars(found[file]))
    cls = next(v for v in vars(found[changed]).values() if method in getattr(v, "__dict__", {}))
    owner = next(c for c in keras.optimizers.Adam.__mro__ if method in vars(c))
    monkeypatch.setattr(owner, method, vars(cls)[method])
    exec(SCRIPTS[name], {})
    suite = found[tests].OptimizerTest
    for test in unittest.defaultTestLoader.getTestCaseNames(suite):
        if re.search("gradient_accumulation.*[^1-9]$", test):  # of rows, the first
            suite(test).debug()  # raises errors
