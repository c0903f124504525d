"""The code in README.md runs, in its order, and its table is what the demonstration prints."""

import re

import hosts
import numpy as np
import pytest
from cases import once, thorough

from keras_accum import __main__ as main

pytestmark = pytest.mark.filterwarnings("error:An epoch ended inside a window")
README = (hosts.PROJECT / "README.md").read_text("utf-8")
FIRST, SAVE_AND_LOAD, CALLBACK = re.findall(r"```python\n(.*?)```", README, re.S)


@thorough
@once
def test_scripts(tmp_path, monkeypatch):
    """The first one ends with the weights of Adam and the big batch."""
    hosts.set_floatx("float32")
    monkeypatch.chdir(tmp_path)
    names, stock = {}, {}
    big_batch = FIRST.replace("AdamAccumulate(accum_iters=5)", "keras.optimizers.Adam()")
    for script, found in ((FIRST, names), (big_batch.replace("size=10", "size=50"), stock)):
        hosts.keras.utils.set_random_seed(1)
        exec(script.replace("batch_size", "shuffle=False, batch_size"), found)
    pairs = zip(names["model"].get_weights(), stock["model"].get_weights())
    assert max(abs(ours - of_stock).max() for ours, of_stock in pairs) < 1e-5
    names.update(x=names["x"][:30], y=names["y"][:30])
    exec(SAVE_AND_LOAD, names)
    optimizer = names["model"].optimizer
    assert (optimizer.completed_updates, optimizer.window_position) == (20, 3)
    names.update(x=np.ones((100, 20)), y=np.ones((100, 1)))
    exec(CALLBACK, names)
    assert names["model"].optimizer.iterations == 2  # batches of 50


def test_the_first_script_is_the_one_of_which_a_type_checker_knows_everything():
    assert FIRST in (hosts.TESTS / "package" / "typed_uses.py").read_text("utf-8")


def test_the_table_is_the_one_of_the_demonstration():
    assert main.ROW.format("", *main.HEADS) in README
    assert main.LEGEND in README and main.SMALL in README
