"""The defects of Keras that docs/upstream reports are still there.

Each script about Keras's own accumulation runs as it is, and with our classes in place of Keras's
own. Ours give the big batch, so what a script expects can be had.
"""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import hosts
import pytest
from cases import once, thorough
from hosts import keras

FOLDER = hosts.PROJECT / "docs/upstream"
SCRIPTS = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.py"))}
ON_TENSORFLOW, ON_TORCH, ON_JAX = "mirrored_strategy", "same_path", "called_twice"


def with_ours(script):
    own = r"keras\.optimizers\.(\w+)\((.*)gradient_accumulation_steps="
    script, count = re.subn(own, r"keras_accum.\1Accumulate(\2accum_iters=", script)
    assert count == 1
    return script.replace("import keras\n", "import keras\nimport keras_accum\n", 1)


@once
def test_the_page_has_every_script():
    page = (FOLDER / "README.md").read_text("utf-8")
    assert SCRIPTS and set(re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\)", page, re.M)) == set(SCRIPTS)


@thorough
@once
@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - {ON_TENSORFLOW, ON_TORCH, ON_JAX}))
def test_the_defect_is_still_there(name):
    exec(with_ours(SCRIPTS[name]), {"__name__": name})
    assert_fails(name)


@pytest.mark.skipif(not hosts.IS_TORCH, reason="a defect of Keras on PyTorch")
def test_the_defect_on_pytorch_is_still_there():
    assert_fails(ON_TORCH)


@once
def test_the_defect_on_jax_is_still_there():
    assert_fails(ON_JAX)


def assert_fails(name):
    try:
        exec(SCRIPTS[name], {"__name__": name})
    except AssertionError:
        return
    pytest.fail(f"Keras {keras.__version__} has fixed {name}: say so in docs/upstream/README.md")


@thorough
@pytest.mark.skipif(
    not (hosts.IS_KERAS3 and hosts.IS_TENSORFLOW), reason="MirroredStrategy is TensorFlow's"
)
def test_mirrored_strategy(tmp_path):
    ours = run(tmp_path, with_ours(SCRIPTS[ON_TENSORFLOW]))
    assert ours.returncode == 0, ours.stderr
    own = run(tmp_path, SCRIPTS[ON_TENSORFLOW])
    assert own.returncode == 1 and "\nRuntimeError: " in own.stderr


def run(folder, script):
    """In a new process, which can still make two devices of one."""
    (folder / "script.py").write_text(script, "utf-8")
    command = [sys.executable, "-W", "ignore", "script.py"]
    return subprocess.run(
        command, cwd=folder, env=dict(os.environ), stderr=subprocess.PIPE, text=True
    )


@thorough
@once
def test_the_patch_mends_the_schedule(tmp_path, monkeypatch):
    """It applies to the Keras that is installed, and its test fails without it."""
    from keras.src.optimizers import base_optimizer

    source = Path(base_optimizer.__file__)
    optimizers = tmp_path / "keras/src/optimizers"
    optimizers.mkdir(parents=True)
    for name in ("base_optimizer.py", "optimizer_test.py"):
        (optimizers / name).write_text(source.with_name(name).read_text("utf-8"), "utf-8")
    patch = FOLDER / "schedule.patch"
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)

    patched, tests = types.ModuleType("patched"), types.ModuleType("tests")
    exec((optimizers / "base_optimizer.py").read_text("utf-8"), vars(patched))
    exec((optimizers / "optimizer_test.py").read_text("utf-8"), vars(tests))
    (name,) = re.findall(r"^\+    def (test_\w+)", patch.read_text("utf-8"), re.M)
    test = getattr(tests.OptimizerTest(name), name)
    with pytest.raises(AssertionError):
        test()
    name = "_get_current_learning_rate"
    mended = getattr(patched.BaseOptimizer, name)
    monkeypatch.setattr(base_optimizer.BaseOptimizer, name, mended)
    test()
    exec(SCRIPTS["schedule"], {"__name__": "schedule"})
