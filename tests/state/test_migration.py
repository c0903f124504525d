"""Follow docs/migration_from_keras_2.md as its reader would: on one Keras, and then on another.

On Keras 2 these tests leave files in the folder KERAS_ACCUM_TEST_FILES for the tests that run later
on the other hosts, see `noxfile.py`. Without these files, `test_kept_files.py` reads older ones.
"""

import os
import re
import shutil
from pathlib import Path

import hosts
import numpy as np
import pytest
from cases import CASES, Case, each_version, thorough
from hosts import keras
from training import LENGTH, assert_moved, compiled, dense_model, go_on

PAGE = hosts.PROJECT / "docs" / "migration_from_keras_2.md"
FILES = Path(os.environ.get("KERAS_ACCUM_TEST_FILES", "no such folder")) / "migration"
BLOCKS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE.read_text(), re.S))
STOP = LENGTH + 2  # two micro-batches into the second window

MOVED = {row: CASES[row] for row in ("momentum", "amsgrad", "rmsprop")}
MOVED["clipped"] = Case("SGD", {"learning_rate": 2**-1, "decay": 0.25, "clipnorm": 0.3})
MOVED["sequential"] = CASES["adam"]

pytestmark = [
    pytest.mark.skipif(hosts.IS_NEW_STYLE, reason="a migration to tf_keras is to its legacy style"),
    # Keras 3 warns about the one-element list of inputs in Keras 2.2's and 2.3's files.
    pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match"),
    pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`"),
]


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(hosts, "FLOATX", "float32")
    hosts.set_floatx("float32")


def sequential():
    first = keras.layers.Dense(4, activation="tanh", name="hidden", input_shape=(3,))
    return keras.models.Sequential([first, keras.layers.Dense(2, name="out")])


def follow(block, optimizer="Adam", **names):
    """Run a block of the page for this optimizer, and return the model that results."""
    code = BLOCKS[block].replace("AdamAccumulate", f"{optimizer}Accumulate")
    if not keras.__name__.startswith("tf_keras"):  # tf_keras has this name since TensorFlow 2.16
        code = code.replace("from tf_keras.models", "from tensorflow.keras.models")
    exec(code, names)
    return names["model"]


def test_all_blocks_are_tested():
    assert set(BLOCKS) == {
        "before", "after", "an old file", "a stock optimizer", "on Keras 2.2 or 2.3",
        "on tf_keras", "on Keras 3", "the copied class on Keras 3", "a Sequential on Keras 3",
        "a graph of your own",
    }  # fmt: skip
    before, after = (BLOCKS[name].splitlines() for name in ("before", "after"))
    assert before[1:] == after[1:] and before[0] != after[0], "one line is changed"


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="about code that stays on Keras 2.2 or 2.3")
def test_where_the_code_runs_now(tmp_path, monkeypatch):
    model = go_on(follow("after", model=dense_model()), 0, 7)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 2)
    file = hosts.TESTS / "files" / "keras_2_2_4" / "adamaccumulate_boundary.h5"
    shutil.copy(file, tmp_path / "old.h5")
    monkeypatch.chdir(tmp_path)
    optimizer = follow("an old file").optimizer
    assert (optimizer.completed_updates, optimizer.accum_iters) == (2, 5)
    model = go_on(compiled(dense_model(), hosts.stock("Adam")), 0, 3)
    model = go_on(follow("a stock optimizer", model=model), 3, 5)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (3, 2)


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="about TensorFlow 1")
def test_a_graph_of_your_own(capsys):
    """It prints what it says, which is the formula. A window that is dropped changes nothing."""
    names = {}
    exec(BLOCKS["a graph of your own"], names)
    total = sum(2 * x * (x - 1.0) for x in (2.0, 3.0, 4.0))
    assert capsys.readouterr().out.split() == [str(total), str(1 - 0.1 * total)] == ["40.0", "-3.0"]
    session, optimizer = names["session"], names["optimizer"]
    session.run(names["step"], {names["x"]: 5.0})
    optimizer.discard_window()
    optimizer.apply_partial_window()
    assert (session.run(names["w"]), optimizer.get_state()["accumulator.0"]) == (-3, 0)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="a block for Keras 3")
def test_a_file_of_the_copied_class(tmp_path, monkeypatch):
    file = hosts.TESTS / "files" / "keras_2_2_4" / "adamaccumulate_boundary.h5"
    shutil.copy(file, tmp_path / "old.h5")
    monkeypatch.chdir(tmp_path)
    optimizer = follow("the copied class on Keras 3").optimizer
    assert (optimizer.completed_updates, optimizer.accum_iters) == (2, 5)


@thorough
@each_version
@pytest.mark.parametrize("row", MOVED)
@pytest.mark.parametrize("version", [keras.__version__[:3]] if hosts.IS_KERAS2 else ["2.2", "2.3"])
def test_moved(version, row, tmp_path, monkeypatch):
    """Keras 2 saves, and then the other Kerases load."""
    name, arguments = MOVED[row]
    folder = FILES / version / row
    if hosts.IS_KERAS2:
        folder = folder if FILES.parent.is_dir() else tmp_path
        folder.mkdir(parents=True, exist_ok=True)
    elif not (folder / "end.npz").exists():
        pytest.skip(f"no files of Keras {version}: `nox -s keras2` writes them with Python 3.7")
    monkeypatch.chdir(folder)
    if hosts.IS_KERAS2:
        optimizer = hosts.ours(name, **arguments, accum_iters=LENGTH)
        model = compiled(sequential() if row == "sequential" else dense_model(), optimizer)
        saved = follow("on Keras 2.2 or 2.3", model=go_on(model, 0, STOP)).get_weights()
        end = go_on(model, STOP).get_weights()
        assert_moved(dict(enumerate(saved)), dict(enumerate(end)), by=0.01)
        np.savez("end.npz", *end)
        return
    model = follow("on Keras 3" if hosts.IS_KERAS3 else "on tf_keras", name)
    if row == "sequential" and hosts.IS_KERAS3:
        model = follow("a Sequential on Keras 3", model=model, keras=keras)
    hosts.build(model)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 2)
    # RMSprop's epsilon is inside the root on Keras 3 and outside it on Keras 2.
    atol = 2e-4 if row == "rmsprop" and hosts.IS_KERAS3 else 1e-6
    with np.load("end.npz") as expected:
        for actual, weight in zip(go_on(model, STOP).get_weights(), expected.values()):
            np.testing.assert_allclose(actual, weight, rtol=1e-5, atol=atol)
