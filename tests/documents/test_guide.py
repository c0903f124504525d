"""The code in docs/guide.md runs unchanged, and makes the updates that it should."""

import functools
import importlib
import re
from pathlib import Path

import hosts
import numpy as np
import pytest
from cases import keras2_has_no
from hosts import accum, keras
from training import batches, compiled, data, dense_model, go_on, initialize

PAGE = hosts.PROJECT / "docs" / "guide.md"
BLOCKS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE.read_text("utf-8"), re.S))
X, Y = (np.concatenate([array] * 3)[:70] for array in data())  # seven micro-batches of 10


def run(block, **names):
    exec(BLOCKS[block].replace("import keras\n", hosts.IMPORT_KERAS + "\n"), names)
    return names


def test_all_blocks_are_tested():
    tests = Path(__file__).read_text("utf-8")
    assert [name for name in BLOCKS if f'("{name}"' not in tests] == []


def row(block, updates, position, only_on=True):
    """A block with a model, and the updates and the position in the window that it leaves."""
    marks = pytest.mark.skipif(not only_on, reason="the block is for other hosts")
    return pytest.param(block, updates, position, id=block, marks=marks)


@keras2_has_no("callbacks of these blocks")
@pytest.mark.parametrize(
    "block, updates, position",
    [
        row("the big batch in one train step", 2, None, hosts.IS_KERAS3),
        row("weights in fit", 1, 2),
        row("callbacks that count updates", 2, 0, hosts.IS_KERAS3),
        row("half trained: Keras's own", 1, 2, hosts.IS_KERAS3),
    ],
)
def test_a_block_with_a_model(block, updates, position, tmp_path):
    model = initialize(dense_model())
    if block == "half trained: Keras's own":
        own = run("before: Keras's own", keras=keras)["optimizer"]
        go_on(compiled(model, own, metrics=["mae"]), 0, 7)
    names = {"keras": keras, "model": model, "x": X, "y": Y}
    model = run(block, **names, path=str(tmp_path / "saved.keras"))["model"]
    if block == "half trained: Keras's own":
        assert model.get_compile_config()["metrics"] == ["mae"]
    assert int(model.optimizer.iterations) == updates
    assert position in (None, getattr(model.optimizer, "window_position", None))


@keras2_has_no("schedules")
def test_schedules_of_the_learning_rate():
    names = run("a schedule in updates")
    assert names["updates"] == 400
    assert float(names["schedule"](400)) == 0 < float(names["schedule"](399))
    grows = run("windows that grow")
    assert (grows["optimizer"].accum_iters, grows["updates"]) == (1, 100 + 200 + 1100 // 16)


@pytest.mark.skipif(hosts.BACKEND != "jax", reason="for JAX")
def test_a_loop_for_jax():
    model, optimizer = initialize(dense_model()), hosts.ours("Adam", accum_iters=None)
    hosts.build_on(optimizer, model.trainable_variables)

    def loss_of(trainable, others, x, y):
        outputs, others = model.stateless_call(trainable, others, x, training=True)
        return ((outputs - y) ** 2).mean(), others

    variables = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    names = {"optimizer": optimizer, "micro_batches": batches(10, (X, Y)), "loss_of": loss_of}
    names["state"] = tuple([v.value for v in group] for group in variables)
    names.update(functools=functools, jax=importlib.import_module("jax"))
    found = run("a loop for JAX", **names)["state"]
    for v, value in zip(optimizer.variables, found[2]):
        v.assign(value)
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 2)


@keras2_has_no("`accumulating`")
def test_another_optimizer():
    class Yours(type(hosts.stock("SGD"))):
        pass

    names = run("another optimizer", Yours=Yours)
    assert issubclass(names["YoursAccumulate"], Yours)
    assert (names["optimizer"].accum_iters, names["optimizer"].completed_updates) == (5, 0)


@keras2_has_no("reduction='weighted'")
def test_weights_in_a_train_step():
    optimizer = hosts.ours("SGD", learning_rate=0.5, accum_iters=2, reduction="weighted")
    variable, train_step = hosts.variable([1.0], "w"), run("weights in a train step")["train_step"]
    for gradient, tokens in ((1.0, 3), (-1.0, 1)):
        gradient = hosts.native(hosts.variable([gradient], "g")) + 0.0
        train_step(optimizer, [gradient], [variable], tokens)
    assert hosts.array(variable) == [1 - 0.5 * (3 - 1) / 4]


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about Keras 3's own accumulation")
def test_in_place_of_keras_s_own():
    before = run("before: Keras's own", keras=keras)["optimizer"]
    after = run("after: Keras's own")["optimizer"]
    assert type(after) is accum.AdamAccumulate
    assert after.accum_iters == before.gradient_accumulation_steps
    assert float(after.learning_rate) == float(before.learning_rate)
