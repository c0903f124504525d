"""docs/api.md is made from the docstrings, and has all that is public."""

import importlib.util
from pathlib import Path

import hosts
import pytest

import keras_accum

DOCS = Path(__file__).resolve().parent.parent / "docs"
spec = importlib.util.spec_from_file_location("write_api", DOCS / "write_api.py")
write_api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(write_api)

if not hosts.IS_KERAS3:
    pytest.skip("the page has the docstrings as they read on Keras 3", allow_module_level=True)


def test_the_page_is_what_the_docstrings_say():
    assert (DOCS / "api.md").read_text("utf-8") == write_api.text(), "run python docs/write_api.py"


@pytest.mark.parametrize("name", keras_accum.__all__)
def test_public_names_have_docstrings(name):
    assert len(getattr(keras_accum, name).__doc__.splitlines()) > 5


def test_the_page_has_every_public_member():
    """Of those that the optimizers have and their stock optimizers don't."""
    optimizer = keras_accum.AdamAccumulate
    of_stock = {"fixed", *dir(optimizer._stock_class())}
    public = {name for name in dir(optimizer) if not name.startswith("_")} - of_stock
    assert public == set(write_api.MEMBERS)
    assert all(getattr(optimizer, name).__doc__ for name in write_api.MEMBERS)
