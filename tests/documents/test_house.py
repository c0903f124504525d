"""The page that walks through the code, `keras_accum/README.md`, and the ports."""

import re
from pathlib import Path

import hosts
import pytest

import keras_accum
from keras_accum.port import Port, StatePort

PACKAGE = Path(keras_accum.__file__).resolve().parent


def members_of(part):
    """Return the names of the members that the docstring of a part of a port asks for."""
    rows = re.findall(r"^    (\w.*?): [A-Z{]", part.__doc__, re.M)
    return [name for row in rows for name in re.findall(r"(\w+)(?:\([^)]*\))?(?:, |$)", row)]


def test_each_port_does_all_that_the_engine_needs():
    port = hosts.ours("Adam", accum_iters=2)._accumulation.port
    assert isinstance(port, Port)
    needed = members_of(StatePort) + members_of(Port)
    assert {"variables", "read", "write", "stock_variables", "ops", "branch"} < {*needed}
    assert [member for member in needed if not hasattr(port, member)] == []


@pytest.mark.once
def test_the_page_names_files_that_exist():
    page = (hosts.PROJECT / "keras_accum" / "README.md").read_text("utf-8")
    cells = re.findall(r"^\| \d+ \| (.*?) \|", page.split("## One gradient")[0], re.M)
    files = {name.partition("/")[0] for name in re.findall(r"`([^`]+)`", "".join(cells))}
    assert files == {path.stem for path in PACKAGE.iterdir()} - {"README", "__pycache__", "py"}
    source = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    for method in re.findall(r"`(?:\w+\.)?[A-Z][a-z]\w*\.(\w+)`", page):
        assert re.search(rf"(def|class) {method}\b|\b{method} = ", source), method
