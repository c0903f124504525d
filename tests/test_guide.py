"""The code on docs/guide.md, as it stands there."""

import re
from pathlib import Path

import hosts
import pytest
from hosts import keras
from training import MICRO, assert_equal, compiled, dense_model, fit, go_on, initialize, weights

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guide.md"
BLOCKS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE.read_text("utf-8"), re.S))
keras3_only = pytest.mark.skipif(not hosts.IS_KERAS3, reason="about Keras 3")


def run(block, **names):
    exec(BLOCKS[block], names)
    return names


def test_all_blocks_are_tested():
    peers = {"GradientAccumulateModel", "GradientAccumulateOptimizer", "runai"}
    pairs = {f"{when}: {who}" for when in ("before", "after") for who in ("Keras's own", *peers)}
    assert set(BLOCKS) == {"a schedule in updates", "half trained: Keras's own"} | pairs


@pytest.mark.skipif(hosts.IS_KERAS2, reason="no schedules")
def test_schedule():
    """It ends with the training."""
    with_keras = BLOCKS["a schedule in updates"].replace(
        "import keras\n", hosts.IMPORT_KERAS + "\n"
    )
    names = {}
    exec(with_keras, names)
    assert names["updates"] == 400
    assert float(names["schedule"](names["updates"])) == 0 < float(names["schedule"](399))
    assert names["optimizer"].accum_iters == 5


@keras3_only
def test_keras_own():
    """Where it is right, the same numbers before and after."""
    ends = []
    for when in ("before", "after"):
        optimizer = run(f"{when}: Keras's own", keras=keras)["optimizer"]
        model = compiled(dense_model(), optimizer)
        fit(model, MICRO)
        ends.append(weights(model))
    assert_equal(ends[1], ends[0])


@keras3_only
def test_half_trained_with_keras_own():
    optimizer = run("before: Keras's own", keras=keras)["optimizer"]
    model = go_on(compiled(dense_model(), optimizer), 0, 7)
    run("half trained: Keras's own", model=model)
    assert (model.optimizer.accum_iters, model.optimizer.window_position) == (5, 2)
    assert model.optimizer.completed_updates == 1


@pytest.mark.skipif(hosts.IS_KERAS2, reason="a peer on tf.keras")
def test_after_gradient_accumulator():
    optimizer = run("after: GradientAccumulateOptimizer")["optimizer"]
    model = compiled(dense_model(), optimizer)
    other = dense_model()
    run("after: GradientAccumulateModel", model=other)
    initialize(other)
    assert_equal(weights(go_on(other)), weights(go_on(model)))


@pytest.mark.skipif(not hosts.IS_KERAS2, reason="a peer on Keras 2.2")
def test_after_runai():
    model = go_on(compiled(dense_model(), run("after: runai")["optimizer"]), 0, 7)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 2)
