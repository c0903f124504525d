"""The pages about the code, `keras_accum/README.md` and CONTRIBUTING.md, and the parts."""

import ast
import re
from pathlib import Path

import pytest

import keras_accum
from keras_accum.engine.parts import Store, Values
from keras_accum.engine.stock import Stock

PACKAGE = Path(keras_accum.__file__).resolve().parent
PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "interface, member", [(Values, "cast"), (Store, "updates"), (Stock, "state")]
)
def test_a_part_that_lacks_a_member(interface, member):
    """Python refuses to create it."""
    members = dict.fromkeys(interface.__abstractmethods__ - {member})
    lacks_one = type("LacksOne", (interface,), members)
    with pytest.raises(TypeError, match=f"abstract method.* '?{member}"):
        lacks_one.__new__(lacks_one)


def test_the_page_names_files_that_exist():
    page = (PROJECT / "keras_accum" / "README.md").read_text("utf-8")
    cells = re.findall(r"^\| \d+ \| (.*?) \|", page.split("## One gradient")[0], re.M)
    files = {name.partition("/")[0] for name in re.findall(r"`([^`]+)`", "".join(cells))}
    assert files == {path.stem for path in PACKAGE.iterdir()} - {"README", "__pycache__", "py"}


def names_in(tree):
    """Return the names that a module or a class defines, also by assigning to `self`."""
    found = set()
    for node in tree.body if isinstance(tree, ast.Module) else ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = getattr(node, "targets", None) or [node.target]
            flat = [e for t in targets for e in getattr(t, "elts", [t])]
            found.update(getattr(t, "id", getattr(t, "attr", "")) for t in flat)
    return found


def names_by_owner():
    """Return the names that each module and class has: {module or class: names}."""
    found, bases = {}, {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        name = path.parent.name if path.stem == "__init__" else path.stem
        found.setdefault(name, set()).update(names_in(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(names_in(node))
                bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]

    for _ in range(4):  # no class is deeper
        for name, parents in bases.items():
            found[name].update(*(found.get(parent, ()) for parent in parents))
    return found


def test_the_pages_name_members_that_exist():
    pages = "keras_accum/README.md", "CONTRIBUTING.md"
    page = "".join((PROJECT / name).read_text("utf-8") for name in pages)
    pairs = set(re.findall(r"`(\w+)\.(\w+)`", page))
    files = {f"{name}.{end}" for name, end in pairs if end in ("py", "md", "yml")}
    files |= {*re.findall(r"`(\w+/\w+\.py)`", page)}
    assert len(files) > 3 and len(pairs) > 30
    for file in files:
        assert [*PROJECT.glob(file), *(PROJECT / "keras_accum").rglob(file)], file
    owners = names_by_owner()
    pairs = {pair for pair in pairs if ".".join(pair) not in files and pair[0] not in OTHERS}
    assert {f"{owner}.{name}" for owner, name in pairs if name not in owners[owner]} == set()


OTHERS = "CallbackList", "jax"  # of Keras, and a framework
