"""The install hints of error messages name extras that exist, in a command for a clone."""

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
    return re.findall(r"'\.\[(\w+)\]'", str(error.value))


def test_no_keras(monkeypatch):
    monkeypatch.setattr(host, "uses_legacy_keras", lambda: False)
    monkeypatch.setattr(host, "_installed_version", lambda package: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ImportError, match="found no Keras.*clone") as error:
        host.module_name()
    assert hinted(error) == ["tensorflow", "jax", "torch", "legacy", "keras2"]
    assert all(f'"{extra}"' in SETUP for extra in hinted(error))


def test_no_tf_keras(monkeypatch):
    tensorflow = type(sys)("tensorflow")
    tensorflow.__version__ = "2.16.1"
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setitem(sys.modules, "tf_keras", None)  # its import fails
    with pytest.raises(ImportError, match="needs the package tf_keras.*clone.*2.16.1") as error:
        host.import_keras_2()
    assert hinted(error) == ["legacy"]


# Keras's nightly is the distribution keras-nightly: there is no distribution keras, but its module.
NIGHTLY = """
from keras_accum import host

host._installed_version = lambda package: None
print(host.module_name())
host._check_keras("keras3", "Keras 3", (3, 0), (4, 0))
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
    (tmp_path / "keras" / "__init__.py").write_text(f"__version__ = {version!r}", "utf-8")
    paths = [str(tmp_path), str(Path(host.__file__).resolve().parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TF_USE_LEGACY_KERAS": "0"}
    job = subprocess.run(
        [sys.executable, "-c", NIGHTLY], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert job.stdout.decode().strip() == said
    found = f"Found: keras {version[: version.index('.', 2)]}"
    assert (found in job.stderr.decode()) == (said != "keras_accum.keras3")
