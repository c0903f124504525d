"""How many small mistakes the quick tests notice: `python tests/support/mutate.py`.

Makes one mistake at a time in a copy of the package (a changed comparison, operator, number,
condition or a statement that is left out), and runs the tests in `tests/pure` that need a second.
Prints each mistake that no test noticed, and the share of those that were. `--least 0.8` exits with
an error below this share. Name a file or a folder of the package, such as `terms` or
`engine/window.py`, to see it alone.
"""

import argparse
import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "keras_accum"
# What should notice a mistake, by file or folder; all of `tests/pure` for others. Not here is what
# needs a framework: `engine/models.py` and `engine/parts.py`, which each Keras implements, and
# `terms/tap.py`, which stands in for the losses of a compiled model.
ENGINE = "test_engine.py", "test_mathematics.py"
OF_STATES = "test_state_names.py", "test_names_of_weights.py", "test_waiting_states.py"
STATE = (*OF_STATES, "test_engine.py")
TERMS = ("test_terms.py",)
TESTS = {
    "engine/accumulation.py": ENGINE,
    "engine/gradients.py": ENGINE,
    "engine/pending.py": (*ENGINE, "test_pending_weights.py"),
    "engine/sums.py": ENGINE,
    "engine/window.py": ENGINE,
    "engine/state": STATE,
    "fit": ("test_fit.py",),
    "terms/problems.py": ("test_fit.py", *TERMS),
    "terms/reader.py": ("test_fit.py", *TERMS),
    "terms/repeated.py": TERMS,
    "terms/table.py": TERMS,
    "terms/term.py": TERMS,
}
OPPOSITES = {
    **{ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult},
}


def mistakes_at(node):
    """Yield (what was changed, a function that changes the node)."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITES:
        yield "comparison", lambda n: n.ops.__setitem__(0, OPPOSITES[type(n.ops[0])]())
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in OPPOSITES:
        yield "operator", lambda n: setattr(n, "op", OPPOSITES[type(n.op)]())
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        yield "constant", lambda n: setattr(n, "value", type(n.value)(1 - n.value))
    if isinstance(node, (ast.If, ast.IfExp)):
        yield "condition", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "left out", lambda n: setattr(n, "value", ast.Constant(None))


def find_mistakes(source):
    """Yield (line, what was changed, the changed source) for each mistake in a module."""
    tree = ast.parse(source)
    raised = {id(n) for r in ast.walk(tree) if isinstance(r, ast.Raise) for n in ast.walk(r)}
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in raised:  # a message
            continue
        for what, change in mistakes_at(node):
            changed = copy.deepcopy(tree)
            change(list(ast.walk(changed))[index])
            yield node.lineno, what, ast.unparse(ast.fix_missing_locations(changed))


def find_files(names):
    """Yield the modules of the package with these names, and those in folders."""
    for name in names:
        path = PACKAGE / name
        if not path.exists():
            sys.exit(f"There is no {path}.")
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def find_tests(file):
    """Return the paths of the tests that should notice a mistake in a module."""
    found = {PACKAGE / name: tests for name, tests in TESTS.items()}
    tests = found.get(file) or found.get(file.parent) or ("",)
    return [str(PROJECT / "tests" / "pure" / name) for name in tests]


def is_noticed(file, source):
    """Return True if the tests fail with this source of a module."""
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder, PACKAGE.name)
        shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
        (copied / file.relative_to(PACKAGE)).write_text(source, encoding="utf-8")
        pytest = "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            hidden = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            command = sys.executable, *pytest, *find_tests(file)
            ran = subprocess.run(command, cwd=folder, env=environment, timeout=60, **hidden)
        except subprocess.TimeoutExpired:
            return True
        return ran.returncode != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=list(TESTS), help="files or folders")
    parser.add_argument("--least", type=float, default=0.0, help="the least share of each file")
    parser.add_argument("--every", type=int, default=1, help="make every n-th mistake only")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    is_low = False
    for file in find_files(options.names):
        source, name = file.read_text("utf-8"), file.relative_to(PACKAGE).as_posix()
        found = list(find_mistakes(source))[:: options.every]
        if not found:
            continue
        if is_noticed(file, ast.unparse(ast.parse(source))):
            sys.exit(f"The tests of {name} fail without a mistake.")
        with ThreadPoolExecutor(options.workers) as pool:
            changed = [mistake[2] for mistake in found]
            noticed = list(pool.map(is_noticed, [file] * len(found), changed))
        for (line, what, _), is_seen in zip(found, noticed):
            if not is_seen:
                print(f"{name}:{line}: {what}, {source.splitlines()[line - 1].strip()}")
        share = sum(noticed) / len(noticed)
        print(f"{name}: {sum(noticed)} of {len(noticed)} noticed, {share:.0%}", flush=True)
        is_low = is_low or share < options.least
    sys.exit(is_low)


if __name__ == "__main__":
    main()
