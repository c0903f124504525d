"""How far everybody's accumulation ends from the big batch.

`nox -f benchmarks/noxfile.py -s everybody` makes an environment for each group of packages, and
measures there with `python -m everybody GROUP`, in the folder `benchmarks`, which writes
`results/everybody_GROUP.json`. Then `python -m everybody table` prints the table of
benchmarks/README.md. Each package is used as its own documentation says. See `common`.
"""

import importlib
import json
import sys

from .common import RESULTS, cells, table


def measure(group):
    """Write {"versions": {...}, "columns": {package: {row: cell}}}."""
    module = importlib.import_module(f"everybody.of_{group}")
    columns = {name: cells(column, module.FLOATX) for name, column in module.columns().items()}
    found = {"versions": module.versions(), "columns": columns}
    path = RESULTS / f"everybody_{group}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        print(table())
    else:
        measure(*sys.argv[1:])
