"""A state numbers the model's trainable variables, in whatever order the optimizer met them."""

import hosts
import numpy as np
import pytest
from cases import CASES
from copies import EAGER, SAVED, to_checkpoint
from formats import assert_same, everything
from hosts import accum
from training import LENGTH, compiled, dense_model, go_on

pytestmark = [
    pytest.mark.skipif(not hosts.IS_LEGACY, reason="only legacy optimizers add variables"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]

REMEDY = r"optimizer\.build\(model\.trainable_variables\)"
STOP = LENGTH + 2


def adam(**more):
    return hosts.ours("Adam", **{"accum_iters": LENGTH, **CASES["adam"].arguments, **more})


def thawed(further=0):
    """Train a model with a frozen first layer, then on `further` micro-batches with all layers."""
    model = dense_model()
    model.layers[0].trainable = False
    compiled(model, adam(), hosts.mean_squared_error(), **EAGER)
    go_on(model, 0, STOP)
    model.layers[0].trainable = True
    model.compile(model.optimizer, model.loss, **EAGER)
    return go_on(model, STOP, STOP + further)


@pytest.mark.parametrize("form", sorted({*SAVED, "checkpoint"} - {"other"}))
def test_a_layer_that_was_unfrozen_later(form, tmp_path):
    source = thawed(further=3)
    shapes = [source.optimizer.get_state()[f"Adam.velocity.{i}"].shape for i in range(4)]
    assert shapes == [w.shape for w in source.get_weights()]
    model = {**SAVED, "checkpoint": to_checkpoint}[form](source, tmp_path)
    assert_same(everything(model), everything(source))
    assert_same(everything(go_on(model, STOP + 3)), everything(go_on(source, STOP + 3)))


def test_slots_follow_their_variables():
    model = thawed()
    before = model.optimizer.get_state()
    go_on(model, STOP, STOP + 1)
    after = model.optimizer.get_state()
    for slot in ("momentum", "velocity"):
        np.testing.assert_array_equal(after[f"Adam.{slot}.2"], before[f"Adam.{slot}.0"])
        assert not after[f"Adam.{slot}.0"].any()


def variables(count):
    """Variables of different shapes, by which a state shows its order."""
    return [hosts.variable(np.ones(i + 1), f"v{i}") for i in range(count)]


def meet(optimizer, *parts):
    for part in parts:
        hosts.apply(optimizer, [np.full(v.shape, 0.5) for v in part], part)
    return optimizer


def numbers(optimizer):
    state = optimizer.get_state()
    return [len(array) for name, array in state.items() if name.startswith("accumulator.")]


ONE, TWO, THREE, FOUR = range(4)


@pytest.mark.parametrize(
    "parts",
    [
        [[TWO], [ONE, TWO]],
        [[ONE, TWO], [TWO, THREE]],
        [[TWO, THREE], [ONE, TWO]],
        [[ONE], [THREE], [ONE, TWO, THREE]],
        [[THREE], [ONE], [ONE, TWO, THREE], [TWO]],
        [[ONE, FOUR], [ONE, TWO, THREE, FOUR]],
        [[ONE, TWO, FOUR], [TWO, THREE, FOUR]],
    ],
    ids=str,
)
def test_the_order_that_the_lists_imply(parts):
    vs = variables(4)
    optimizer = meet(adam(), *[[vs[i] for i in part] for part in parts])
    count = len({i for part in parts for i in part})
    assert numbers(optimizer) == list(range(1, count + 1))
    assert optimizer.get_state()["window_position"] == len(parts) % LENGTH


@pytest.mark.parametrize(
    "parts", [[[ONE], [TWO]], [[ONE, TWO], [ONE, THREE]], [[ONE, TWO], [THREE]]], ids=str
)
def test_an_order_that_the_lists_leave_open_is_refused(parts, tmp_path):
    vs = variables(3)
    optimizer = meet(adam(), *[[vs[i] for i in part] for part in parts])
    state = adam().get_state()
    for act in (
        optimizer.get_state,
        optimizer.get_weights,
        lambda: optimizer.set_state(state),
        lambda: accum.AdamAccumulate.from_optimizer(optimizer),
    ):
        with pytest.raises(accum.StateError, match=f"{REMEDY}"):
            act()
    assert (optimizer.completed_updates, optimizer.window_position) == (0, 2)
    optimizer.build(vs)
    assert numbers(optimizer) == [1, 2, 3]
    state = optimizer.get_state()
    again = adam()
    again.set_state(state)
    again.build(vs)
    assert_same(again.get_state(), state)
