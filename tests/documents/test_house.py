"""The page that walks through the code, `keras_accum/README.md`, and the ports."""

import re
from pathlib import Path

import hosts
import pytest
from hosts import accum

import keras_accum
from keras_accum.port import Port, StatePort

PACKAGE = Path(keras_accum.__file__).resolve().parent
CLASSES = sorted(name for name in vars(accum) if name.endswith("Accumulate"))


def members_of(part):
    """Return the names of the members that the docstring of a part of a port asks for."""
    rows = re.findall(r"^    (\w.*?): [A-Z{]", part.__doc__, re.M)
    return [name for row in rows for name in re.findall(r"(\w+)(?:\([^)]*\))?(?:, |$)", row)]


@pytest.mark.parametrize("name", CLASSES)
def test_each_port_does_all_that_the_engine_needs(name):
    port = getattr(accum, name)(accum_iters=2)._accumulation.port
    assert isinstance(port, Port)
    needed = members_of(StatePort) + members_of(Port)
    assert {"variables", "read", "write", "stock_variables", "ops", "branch"} < {*needed}
    assert [member for member in needed if not hasattr(port, member)] == []


@pytest.mark.parametrize("part", [StatePort, Port])
def test_each_method_of_a_port_has_a_contract(part):
    members = {name: m for name, m in vars(part).items() if not name.startswith("_")}
    undocumented = [n for n, m in members.items() if callable(m) and not m.__doc__]
    assert len(members) > 5 and not undocumented


def test_the_page_names_files_and_functions_that_exist():
    page = (hosts.TESTS.parent / "keras_accum" / "README.md").read_text(encoding="utf-8")
    table = page.split("| file | holds |")[1].split("## One gradient")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    files = re.findall(r"`([^`]+)`", "".join(first_cells))
    assert len(files) > 15
    for name in files:
        path = PACKAGE / name
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
    entries = {path.stem for path in PACKAGE.iterdir()} - {"README", "__init__", "__pycache__"}
    assert {name.strip("/") for name in files} == entries - {"py"}
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    for method in re.findall(r"`(?:\w+\.)?[A-Z][a-z]\w*\.(\w+)`", page):
        assert re.search(rf"(def|class) {method}\b|\b{method} = ", source), method
