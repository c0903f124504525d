"""Print the table of docs/works_with.md: `python rows_of_works_with.py tensorflow.json ...`.

The sessions `works_with...` run the tests of tests/works_with, which write a file for each
backend, and then this script.
"""

import json
import sys
from pathlib import Path

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
BACKENDS.update(tf_keras="tf_keras", addons="TensorFlow 2.15")
BACKENDS.update(keras2="Keras 2.2.4", tensorflow_2_10="TensorFlow 2.10")


def table(files):
    """The rows of all files, with the backends that had the same result."""
    found = {}  # one line for all tests of a row
    for file in map(Path, files):
        for row in json.loads(file.read_text("utf-8")):
            found.setdefault(tuple(row), {})[BACKENDS[file.stem]] = None
    rows = [(*row, ", ".join(backends)) for row, backends in found.items()]
    head = "package", "version", "what", "result", "on"
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *sorted(rows)))


if __name__ == "__main__":
    print(table(sys.argv[1:]))
