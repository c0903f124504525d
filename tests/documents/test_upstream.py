"""The defects of Keras that docs/upstream reports are still there, and our classes have none."""

import re
import shutil
import subprocess
import sys
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
@pytest.mark.weekly  # Keras changes without us
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


@thorough
@pytest.mark.weekly
@once
@pytest.mark.parametrize("name", ["schedule", "copies"])
def test_the_patch_mends_the_defect(name, tmp_path, monkeypatch):
    """In a copy of the installed Keras. Keras's own tests of its accumulation pass."""
    shutil.copytree(Path(keras.__file__).parent, tmp_path / "keras")
    subprocess.run(["git", "apply", FOLDER / f"{name}.patch"], cwd=tmp_path, check=True)
    tests = "keras/src/optimizers/optimizer_test.py", "-k", "gradient_accumulation"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for command in [FOLDER / f"{name}.py"], ["-m", "pytest", *tests]:
        subprocess.run([sys.executable, *command], cwd=tmp_path, check=True)
