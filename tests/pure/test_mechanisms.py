"""CONTRIBUTING.md's table of mechanisms names the files that there are, and each has a user."""

import re
from pathlib import Path

import keras_accum

PACKAGE = Path(keras_accum.__file__).parent
PAGE = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text("utf-8")
(TABLE,) = re.findall(r"^\| mechanism \|.*?\n((?:\|.*\n)+)", PAGE, re.M)
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines()[1:]]


def test_each_mechanism_has_a_user_and_says_what_happens_without_it():
    assert len(ROWS) > 20 and all(len(row) == 4 and all(row) for row in ROWS)


def test_the_table_names_the_files_that_there_are():
    """Each file of the package, by itself or by its folder, and no other."""
    named = {name for row in ROWS for name in re.findall("`(.+?)`", row[1])}
    files = {p.relative_to(PACKAGE).as_posix()[: -len(".py")] for p in PACKAGE.rglob("*.py")}
    folders = {name for name in named if name.endswith("/")}
    assert [name for name in named - folders if name not in files] == []
    assert [name for name in folders if not (PACKAGE / name).is_dir()] == []
    left = {file for file in files - named if not file.startswith(tuple(folders))}
    assert left == set()
