"""What a user without the right Keras is told: what to install, by an extra that exists."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_accum import host

PROJECT = Path(__file__).resolve().parents[2]


def module(name, version, **members):
    made = type(sys)(name)
    made.__version__, made.__spec__ = version, object()
    vars(made).update(members)
    return made


def hinted(error):
    """The extras in a message, each quoted for the shell."""
    return re.findall(r'"\.\[(\w+)\]"', str(error.value))


def test_no_keras(monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ImportError, match="found no Keras. Install one") as error:
        host.module_name()
    assert hinted(error) == ["tensorflow", "jax", "torch", "legacy", "keras2"]
    setup = (PROJECT / "setup.py").read_text("utf-8")
    assert all(f'"{extra}"' in setup for extra in hinted(error))


def test_no_tf_keras(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", module("tensorflow", "2.16.1"))
    monkeypatch.setitem(sys.modules, "tf_keras", None)  # its import fails
    with pytest.raises(ImportError, match="needs the package tf_keras.*pip install tf_keras.*2.16"):
        host.import_keras_2()


def test_tensorflow_before_2_8(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", module("tensorflow", "2.7.4"))
    with pytest.raises(ImportError, match="needs TensorFlow 2.8 or newer.*Found: tensorflow 2.7.4"):
        host.import_keras_2()


@pytest.mark.parametrize("asked, given", [("tensorflow", ""), ("torch", "torch"), ("jx", "jx")])
def test_keras_without_its_backend(asked, given, monkeypatch):
    """Missing or misspelt: the error says which one was asked for, and which are installed."""

    def fail(name):
        if asked == "jx":
            raise ValueError(f"Unable to import backend : {asked}")
        raise ModuleNotFoundError(f"No module named {asked!r}", name=asked)

    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    monkeypatch.setenv("KERAS_BACKEND", given)
    monkeypatch.setattr(importlib, "import_module", fail)
    line = "set the environment variable KERAS_BACKEND=jax"
    for other, said in ("jax", f"jax. Before you import Keras, {line}."), ("", "none. Install one"):
        monkeypatch.setattr(importlib.util, "find_spec", ["keras", other].__contains__)
        with pytest.raises(ImportError, match=f"backend '{asked}'.*Installed: {said}"):
            host.module_name()


@pytest.mark.parametrize(
    "error", [ValueError("of Keras"), ModuleNotFoundError("rich", name="rich")]
)
def test_another_error_in_an_import_of_keras(error, monkeypatch):
    def fail(name):
        raise error

    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    monkeypatch.setattr(importlib, "import_module", fail)
    monkeypatch.setattr(importlib.util, "find_spec", ["keras", "jax"].__contains__)
    with pytest.raises(type(error), match=str(error)):
        host.module_name()


def test_a_backend_that_cannot_train(monkeypatch):
    backend = module("keras.backend", "3.15.0", backend=lambda: "numpy")
    monkeypatch.setitem(sys.modules, "keras", module("keras", "3.15.0", backend=backend))
    with pytest.raises(ImportError, match="backend numpy.*KERAS_BACKEND=tensorflow or jax or"):
        host.import_keras("keras3")


def test_keras_3_before_3_10(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", module("keras", "3.6.0"))
    with pytest.raises(ImportError, match="needs Keras 3.10 or newer.*Found: keras 3.6"):
        host.import_keras("keras3")


def test_keras_2_before_2_1_6(monkeypatch):
    """2.0.5 fails to import, and 2.0.9 and 2.1.0 in the first train step."""
    backend = module("keras.backend", "2.1.6", backend=lambda: "tensorflow")
    for version in "2.0.9", "2.1.5", "2.1.6":
        keras = module("keras", version, backend=backend)
        monkeypatch.setitem(sys.modules, "keras", keras)
        if version == "2.1.6":
            assert host.import_keras("keras2") is keras
            continue
        said = f"needs standalone Keras 2.1.6 to 2.3, .*Found: keras {version}"
        with pytest.raises(ImportError, match=said):
            host.import_keras("keras2")


@pytest.mark.parametrize("document", ["README.md", "docs/install.md"])
def test_a_document_names_the_variable_of_the_backend(document):
    """Without it, Keras on JAX or PyTorch ends in `No module named 'tensorflow'`."""
    assert "KERAS_BACKEND=jax" in (PROJECT / document).read_text("utf-8")


# No module of a framework can be found or imported.
CLEAN = """
import importlib.util
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "tensorflow", "keras", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
from keras_accum import host
importlib.util.find_spec = lambda name, find=importlib.util.find_spec: (
    None if name in ("tensorflow", "keras") else find(name)
)
for module in ("keras3", "tf_keras", "keras2"):
    try:
        importlib.import_module(f"keras_accum.{module}")
    except ImportError as error:
        print(error)
"""


def test_nothing_is_installed():
    """The message is about Keras, not about NumPy."""
    path = {"PYTHONPATH": str(Path(host.__file__).resolve().parents[2])}
    job = [sys.executable, "-c", CLEAN]
    said = subprocess.check_output(job, env={**os.environ, **path}).decode().splitlines()
    for name, line in zip(("keras3", "tf_keras", "keras2"), said):
        assert line.startswith(f"keras_accum.{name} found no ")
        assert 'pip install ".[tensorflow]"' in line
    assert len(said) == 3


VERSIONS = {"3.99.0.dev2026010101": "keras3", "2.15.1.dev2023": "tf_keras", "2.3.1": "keras2"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_version_of_keras(version, monkeypatch):
    backend = module("keras.backend", version, backend=lambda: "jax")
    keras = module("keras", version, backend=backend)
    monkeypatch.setitem(sys.modules, "keras", keras)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    assert host.module_name() == f"keras_accum.{VERSIONS[version]}"
    if version.startswith("3"):
        assert host.import_keras("keras3") is keras
    else:
        with pytest.raises(ImportError, match=f"Found: keras {version[:3]}"):
            host.import_keras("keras3")


def test_a_folder_named_keras_is_no_keras(tmp_path):
    (tmp_path / "keras").mkdir()
    program = "from keras_accum import host; print(host._keras_version())"
    command = [sys.executable, "-S", "-c", program]  # without installed packages
    (tmp_path / "keras_accum").symlink_to(Path(host.__file__).resolve().parents[1])
    path = {"PYTHONPATH": str(tmp_path)}
    assert subprocess.check_output(command, env={**os.environ, **path}) == b"None\n"
