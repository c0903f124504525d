"""The install hints of error messages name extras that exist, in a command for a clone."""

import importlib.util
import re
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
