"""How many small mistakes in the engine the quick tests notice: `python tests/support/mutate.py`.

Makes one mistake at a time in a copy of the package (a changed comparison, operator, number,
condition or a statement that is left out), and runs the tests in `tests/pure` that need a second.
Prints each mistake that no test noticed, and the share of those that were. `--least 0.8` exits with
an error below this share; files are named as in `keras_accum/engine`.
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
FILES = "accumulation", "gradients", "pending", "sums", "window"
TESTS = "test_engine.py", "test_mathematics.py"
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


def is_noticed(file, source):
    """Return True if the tests fail with this source of a file."""
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / "keras_accum", Path(folder, "keras_accum"), ignore=ignored)
        Path(folder, "keras_accum", "engine", f"{file}.py").write_text(source, encoding="utf-8")
        tests = [str(PROJECT / "tests" / "pure" / name) for name in TESTS]
        command = sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            hidden = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            ran = subprocess.run(command, cwd=folder, env=environment, timeout=60, **hidden)
        except subprocess.TimeoutExpired:
            return True
        return ran.returncode != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--least", type=float, default=0.0, help="the least share of each file")
    options = parser.parse_args()
    is_low = False
    for file in options.files:
        source = (PROJECT / "keras_accum" / "engine" / f"{file}.py").read_text("utf-8")
        if is_noticed(file, ast.unparse(ast.parse(source))):
            sys.exit("The tests fail without a mistake.")
        found = list(find_mistakes(source))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            changed = [mistake[2] for mistake in found]
            noticed = list(pool.map(is_noticed, [file] * len(found), changed))
        for (line, what, _), is_seen in zip(found, noticed):
            if not is_seen:
                print(f"{file}.py:{line}: {what}, {source.splitlines()[line - 1].strip()}")
        share = sum(noticed) / len(noticed)
        print(f"{file}.py: {sum(noticed)} of {len(noticed)} noticed, {share:.0%}", flush=True)
        is_low = is_low or share < options.least
    sys.exit(is_low)


if __name__ == "__main__":
    main()
