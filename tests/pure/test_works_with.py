"""docs/works_with.md has the rows of the tests, and the versions that their session installs."""

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs/works_with.md").read_text("utf-8")
ROWS = [line.strip("| ").split(" | ") for line in re.findall(r"^\| .+", PAGE, re.M)[2:]]


def test_each_row_is_a_test():
    tested = []
    for path in PROJECT.glob("tests/works_with/test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "row":
                tested.append([ast.literal_eval(argument) for argument in node.args])
    assert tested
    assert sorted(tested) == sorted([package, *said] for package, _, *said, _ in ROWS)


def test_versions_are_those_that_the_session_installs():
    pins = re.findall(r'"([\w-]+)==([\d.]+)"', (PROJECT / "noxfile.py").read_text("utf-8"))
    assert {(package, version) for package, version, *_ in ROWS} <= set(pins)
