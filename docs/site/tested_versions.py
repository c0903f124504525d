"""Write the versions that the tests ran with into docs/install.md: `python tested_versions.py`.

A session of nox whose tests pass keeps its versions in .nox/.cache/versions. `versions.json` beside
this file has those of the newest run of each, and a test compares it with the page. `--list` prints
the versions in the Python that runs this. Works on each Python of the tests.
"""

import json
import platform
import re
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGE, VERSIONS = PROJECT / "docs" / "install.md", Path(__file__).with_name("versions.json")
PACKAGES = "keras", "tf_keras", "tensorflow", "jax", "torch", "numpy"
# Packages that have another one's place.
NAMES = {"tensorflow_cpu": "tensorflow", "keras_nightly": "keras"}
_TABLE = re.compile(r"(^\| session .*\n)((?:^\|.*\n)+)", re.M)


def list_versions():
    """Return the versions of this Python and of the packages in it, by name."""
    if sys.version_info >= (3, 8):
        from importlib import metadata

        found = [
            (package.metadata["Name"], package.version) for package in metadata.distributions()
        ]
    else:
        import pkg_resources

        found = [(package.project_name, package.version) for package in pkg_resources.working_set]
    named = {re.sub("[-.]", "_", name.lower()): version for name, version in found if name}
    named = {NAMES.get(name, name): version.partition("+")[0] for name, version in named.items()}
    return {"Python": platform.python_version(), **{p: named[p] for p in PACKAGES if p in named}}


def make_table(by_session):
    """Return the rows of the table in install.md."""
    head = "session", "Python", *PACKAGES
    rows = [
        (f"`{session}`", *(versions.get(name, "") for name in head[1:]))
        for session, versions in by_session.items()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def read_table():
    """Return the rows that install.md has."""
    return _TABLE.search(PAGE.read_text("utf-8")).group()


def main():
    by_session = json.loads(VERSIONS.read_text("utf-8")) if VERSIONS.exists() else {}
    for file in (PROJECT / ".nox" / ".cache" / "versions").glob("*.json"):
        by_session[file.stem] = json.loads(file.read_text("utf-8"))
    by_session = dict(sorted(by_session.items()))
    VERSIONS.write_text(json.dumps(by_session, indent=1) + "\n", "utf-8")
    page = PAGE.read_text("utf-8").replace(read_table(), make_table(by_session))
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    print(json.dumps(list_versions())) if "--list" in sys.argv else main()
