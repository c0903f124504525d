"""The install hints of error messages name extras that exist, in a command for everybody."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_accum import host

SETUP = (Path(__file__).resolve().parents[2] / "setup.py").read_text("utf-8")


def hinted(error):
    """The extras in a message, each quoted for the shell."""
    return re.findall(r"'keras_accum\[(\w+)\]'", str(error.value))


def test_no_keras(monkeypatch):
    monkeypatch.setattr(host, "uses_legacy_keras", lambda: False)
    monkeypatch.setattr(host, "_keras_version", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ImportError, match="found no Keras. Install one") as error:
        host.module_name()
    assert hinted(error) == ["tensorflow", "jax", "torch", "legacy", "keras2"]
    assert all(f'"{extra}"' in SETUP for extra in hinted(error))


def test_no_tf_keras(monkeypatch):
    tensorflow = type(sys)("tensorflow")
    tensorflow.__version__, tensorflow.__spec__ = "2.16.1", object()
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setitem(sys.modules, "tf_keras", None)  # its import fails
    with pytest.raises(ImportError, match="needs the package tf_keras.*2.16.1") as error:
        host.import_keras_2()
    assert hinted(error) == ["legacy"]


def test_keras_3_before_3_10(monkeypatch):
    monkeypatch.setattr(host, "_keras_version", lambda: (3, 6))
    with pytest.raises(ImportError, match="needs Keras 3.10 or newer.*Found: keras 3.6"):
        host.import_keras("keras3")


@pytest.mark.parametrize("document", ["README.md", "docs/hosts.md"])
def test_a_document_names_the_variable_of_the_backend(document):
    """Without it, Keras on JAX or PyTorch ends in `No module named 'tensorflow'`."""
    text = (Path(__file__).resolve().parents[2] / document).read_text("utf-8")
    assert "KERAS_BACKEND=jax" in text


CLEAN = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "tensorflow", "keras", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
from keras_accum import host
host._keras_version = lambda: None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("tensorflow", "keras") else find(name)
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize("module", ["keras3", "tf_keras", "keras2"])
def test_nothing_is_installed(module):
    """The message is about Keras, not about NumPy."""
    job = subprocess.run(
        [sys.executable, "-c", CLEAN, f"keras_accum.{module}"],
        env={**os.environ, "PYTHONPATH": str(Path(host.__file__).resolve().parents[1])},
        stderr=subprocess.PIPE,
    )
    last = job.stderr.decode().strip().splitlines()[-1]
    assert last.startswith(f"ImportError: keras_accum.{module} found no ")
    assert "pip install 'keras_accum[tensorflow]'" in last


# Keras's nightly is the distribution keras-nightly: there is no distribution keras, but its module.
NIGHTLY = """
from keras_accum import host

def version(distribution):
    raise host.metadata.PackageNotFoundError(distribution)

host.metadata.version = version
print(host.module_name())
host.import_keras("keras3")
"""
MODULE = """
class backend:
    backend = staticmethod(lambda: "jax")
__version__ = {!r}
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("3.99.0.dev2026010101", "keras_accum.keras3"),
        ("2.15.1.dev2023", "keras_accum.tf_keras"),
        ("2.3.1", "keras_accum.keras2"),
    ],
)
def test_keras_of_another_distribution(version, said, tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text(MODULE.format(version), "utf-8")
    paths = [str(tmp_path), str(Path(host.__file__).resolve().parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TF_USE_LEGACY_KERAS": "0"}
    job = subprocess.run(
        [sys.executable, "-c", NIGHTLY], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert job.stdout.decode().strip() == said
    found = f"Found: keras {version[: version.index('.', 2)]}"
    assert (found in job.stderr.decode()) == (said != "keras_accum.keras3")
