"""The page that walks through the code, `keras_accum/README.md`, and the parts."""

import re
from pathlib import Path

import hosts
import pytest

import keras_accum
from keras_accum.parts import Replicas, Store, Update, Values

PACKAGE = Path(keras_accum.__file__).resolve().parent


PARTS = {"values": Values, "replicas": Replicas, "store": Store, "update": Update}


def test_the_parts_of_an_engine():
    """Python itself refuses to create a part without a member that its interface asks for."""
    accumulation = hosts.ours("Adam", accum_iters=2)._accumulation
    for name, interface in PARTS.items():
        part = getattr(accumulation, name)
        assert isinstance(part, interface)
        ours = [cls for cls in type(part).__mro__ if cls.__module__.startswith("keras_accum.")]
        assert ours == [*ours[: ours.index(interface)], interface] and len(ours) <= 3
        assert all(len(cls.__bases__) == 1 for cls in ours)  # composed, not mixed


@pytest.mark.once
def test_a_part_that_lacks_a_member():
    lacks_one = type("LacksOne", (Values,), dict.fromkeys(Values.__abstractmethods__ - {"cast"}))
    with pytest.raises(TypeError, match="abstract method.* '?cast"):
        lacks_one()


@pytest.mark.once
def test_the_page_names_files_that_exist():
    page = (hosts.PROJECT / "keras_accum" / "README.md").read_text("utf-8")
    cells = re.findall(r"^\| \d+ \| (.*?) \|", page.split("## One gradient")[0], re.M)
    files = {name.partition("/")[0] for name in re.findall(r"`([^`]+)`", "".join(cells))}
    assert files == {path.stem for path in PACKAGE.iterdir()} - {"README", "__pycache__", "py"}
    source = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    for method in re.findall(r"`(?:\w+\.)?[A-Z][a-z]\w*\.(\w+)`", page):
        assert re.search(rf"(def|class) {method}\b|\b{method} = ", source), method
