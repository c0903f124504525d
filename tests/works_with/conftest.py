"""Tests on other people's packages, which only `nox -s works_with` installs.

A test has a mark `row(package, what, result)`. It becomes a row of docs/works_with.md.
"""

import json
import os
from pathlib import Path

import pytest

try:
    from importlib.metadata import version
except ImportError:  # Python 3.7
    from importlib_metadata import version

# The file for the rows.
ROWS = os.environ["KERAS_ACCUM_TEST_WORKS_WITH"]

OURS = "error::keras_accum.host.AccumulationWarning"
# Other packages warn of each other. Our own warnings stay errors.
IGNORED = (
    *("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "ResourceWarning"),
    "SyntaxWarning",  # of a module that is compiled for the first time
)
FILTERS = *(f"ignore::{category}" for category in (*IGNORED, "UserWarning")), OURS


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("row"):
            item.add_marker(pytest.mark.filterwarnings(*FILTERS))  # the last one counts first


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    row = item.get_closest_marker("row")
    if row and report.when == "call":
        package, what, result = row.args
        found = [package, version(package), what, result if report.passed else "**fails**"]
        path = Path(ROWS)
        rows = json.loads(path.read_text("utf-8")) if path.exists() else []
        path.write_text(json.dumps([*rows, found]), "utf-8")
