"""Tests use the package as users do: only few files outside of `pure` import internals."""

import ast
from pathlib import Path

from keras_accum import WHERE

TESTS = Path(__file__).resolve().parents[1]
MODULES = {"keras3", "tf_keras", "keras2", "callbacks", "optimizers"}  # that users import
# The files that do, and why no training shows the same.
ALLOWED = {
    "callbacks/test_out_of_memory.py": "counts what JAX copies to the host",
    "callbacks/test_programs_of_slices.py": "asks JAX for the programs of a train step",
    "numbers/test_losses_of_keras.py": "reads each loss of Keras, also those that can't train",
    "numbers/test_rules.py": "gives a rule numbers that no training has",
    "package/test_inert.py": "lets hooks and warnings fail",
    "package/test_main_job.py": "names the device, also a GPU, and fails",
    "package/test_package.py": "is about imports and signatures",
    "package/test_private_members.py": "takes private members of frameworks away",
    "package/typed_uses.py": "has a typo, which type checkers find",
    "support/hosts.py": "finds the version of the Keras that runs the tests",
    "support/numpy_fit.py": "is a Keras of NumPy arrays",
    "support/numpy_keras.py": "is a Keras of NumPy arrays",
}


def list_imports(path):
    """Yield what a file imports of keras_accum, each as a path: ["host", "parse_version"]."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                of, *names = f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".").split(".")
                if of == "keras_accum":
                    yield names


def is_public(names):
    """True for `keras_accum`, its modules that users import, and names in these."""
    of_module = names[1:] if names and names[0] in MODULES else names
    return all(name in WHERE for name in of_module)


def test_who_imports_internals():
    files = [path for path in TESTS.rglob("*.py") if "pure" not in path.parts]
    assert len(files) > 100
    found = {
        path.relative_to(TESTS).as_posix()
        for path in files
        if not all(map(is_public, list_imports(path)))
    }
    assert found == {*ALLOWED}
