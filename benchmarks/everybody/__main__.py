"""How far everybody's accumulation ends from the big batch.

`nox -f benchmarks/noxfile.py -s everybody` makes an environment for each group of packages, and
measures there with `python -m everybody GROUP`, in the folder `benchmarks`, which writes
`results/everybody_GROUP.json`. Each package is used as its own documentation says.

A tiny network trains with micro-batches of 2 in windows of 4, against the stock optimizer of the
same framework with batches of 8, on a CPU in float64, except runai, which is float32. A number is
the largest difference of a weight. `CASES` has the rows.
"""

import importlib
import sys

import tables


def main():
    (group,) = sys.argv[1:]
    framework = "keras" if "keras" in group else group
    versions, columns = importlib.import_module(f"everybody.of_{framework}").columns(group)
    cells = {name: column.cells() for name, column in columns.items()}
    tables.save(f"everybody_{group}", {"versions": versions, "columns": cells})


if __name__ == "__main__":
    main()
