"""The state as named arrays: what fits, what errors say about a misfit, and Keras 2's lists."""

import numpy as np
import pytest

from keras_accum import lists, pending, states

ADAM, SGD, MOMENTUM = ("Adam", ("momentum", "velocity")), ("SGD", ()), ("SGD", ("momentum",))
SHAPES = [(2, 3), (3,)]
SLOTS = ["Adam.momentum.0", "Adam.momentum.1", "Adam.velocity.0", "Adam.velocity.1"]
LAYOUT = {
    "completed_updates": (),
    "learning_rate": (),
    **dict(zip(SLOTS, SHAPES * 2)),
    "window_position": (),
    "window_length": (),
    "accum_iters": (),
    "accumulator.0": (2, 3),
    "accumulator.1": (3,),
}


def state(**changed):
    """A state that fits, in the middle of a window of five."""
    numbers = {"completed_updates": 3, "window_position": 2, "window_length": 5, "accum_iters": 5}
    arrays = {name: np.full(shape, numbers.get(name, 0.5)) for name, shape in LAYOUT.items()}
    changed = {name.replace("__", "."): array for name, array in changed.items()}
    return {"state_format": np.asarray(1), **arrays, **changed}


def without(*names):
    return {name: array for name, array in state().items() if name not in names}


def test_a_state_gets_the_order_of_the_layout():
    backwards = dict(reversed(list(state().items())))
    assert list(states.fitted(backwards, LAYOUT, "it")) == list(LAYOUT)


def test_a_learning_rate_may_be_left_out():
    assert "learning_rate" not in states.fitted(without("learning_rate"), LAYOUT, "it")


def test_a_window_may_be_left_out():
    """A fresh window is used then. A part of a window may not be left out."""
    window = [name for name in LAYOUT if states.is_of_window(name)]
    fitted = states.fitted(without(*window), LAYOUT, "it")
    completed = states.completed(fitted, LAYOUT, accum_iters=7)
    assert [int(completed[name]) for name in states.WINDOW] == [0, 7, 7]
    assert not completed["accumulator.0"].any()
    assert completed["Adam.momentum.0"].all()
    with pytest.raises(states.StateError, match=r"Missing: accumulator\.1\."):
        states.fitted(without("accumulator.1"), LAYOUT, "it")


def test_all_arrays_may_be_left_out_before_the_first_update():
    arrays = [name for name in LAYOUT if states.index_of(name) is not None]
    fresh = {**without(*arrays), "completed_updates": np.asarray(0)}
    fresh["window_position"] = np.asarray(0)
    completed = states.completed(states.fitted(fresh, LAYOUT, "it"), LAYOUT, 5)
    assert {name: array.shape for name, array in completed.items()} == LAYOUT
    with pytest.raises(states.StateError, match=r"Missing: Adam\.momentum\.0"):
        states.fitted(without(*arrays), LAYOUT, "it")


MISFITS = {
    "Missing: Adam.velocity.1.": without("Adam.velocity.1"),
    "Not known here: Adam.third.0.": state(Adam__third__0=np.zeros(2)),
    "Not numbers: Adam.momentum.1.": state(Adam__momentum__1=np.array(["a", "b", "c"])),
    "Of another shape: Adam.momentum.0 is (3, 2), not (2, 3).": state(
        Adam__momentum__0=np.zeros((3, 2))
    ),
    "Impossible: completed_updates = -1, which must be an integer from 0 to 2147483647.": state(
        completed_updates=np.asarray(-1)
    ),
    "Impossible: window_position = 5, which must be an integer from 0 to 4.": state(
        window_position=np.asarray(5)
    ),
    "Impossible: accum_iters = 0, which must be an integer from 1 to": state(
        accum_iters=np.asarray(0)
    ),
    "format 2, and this release of keras_accum reads up to format 1": state(
        state_format=np.asarray(2)
    ),
}


@pytest.mark.parametrize("said", MISFITS)
def test_a_state_that_does_not_fit_is_refused(said):
    with pytest.raises(states.StateError) as refusal:
        states.fitted(MISFITS[said], LAYOUT, "the optimizer of a test")
    message = str(refusal.value)
    assert "doesn't fit the optimizer of a test" in message and said in message
    assert message.endswith("Nothing was changed.")


def test_every_misfit_is_named():
    bad = {**without("Adam.velocity.1"), "strange": np.zeros(1), "completed_updates": np.nan}
    bad.update({"accumulator.1": np.zeros(2), "Adam.momentum.0": "text"})
    with pytest.raises(states.StateError) as refusal:
        states.fitted(bad, LAYOUT, "it")
    assert (
        "Missing: Adam.velocity.1; Not known here: strange; Of another shape: accumulator.1 is "
        "(2,), not (3,); Not numbers: Adam.momentum.0; Impossible: completed_updates = nan"
    ) in str(refusal.value)


RAGGED = [[1], [1, 2]]
IMPOSSIBLE = {
    "Impossible": [np.nan, np.inf, -np.inf, 2.5, 2**31, 2**62, 2.0**31, -1, True, False],
    "Not numbers": [1j, 1 + 0j, "1", b"1", None, RAGGED, object(), 2**70],
    "Of another shape": [np.zeros(0), np.zeros(0, int), [1], [[1]], np.ones(2)],
}
COUNTERS = "state_format", "completed_updates", *states.WINDOW


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("said", IMPOSSIBLE)
def test_what_no_counter_can_be(said, name):
    for value in IMPOSSIBLE[said]:
        with pytest.raises(states.StateError, match=rf"{said}: {name}"):
            states.fitted(state(**{name: value}), LAYOUT, "it")


def test_what_no_count_of_missing_gradients_can_be():
    layout = {**LAYOUT, states.MISSING: (3,)}
    assert states.MISSING in states.fitted(state(missing_gradients=[0, 1, 3]), layout, "it")
    for value in (-1, 0.5, np.nan, 2**31):
        with pytest.raises(states.StateError, match=r"Impossible: missing_gradients = \[.*integer"):
            states.fitted(state(missing_gradients=[0, value, 3]), layout, "it")
    with pytest.raises(states.StateError, match=r"missing_gradients is \(2,\), not \(3,\)"):
        states.fitted(state(missing_gradients=[0, 3]), layout, "it")


def test_an_integer_of_any_type_is_a_counter():
    """Keras 2.0 counted in floats. Every host gets the same type."""
    for value in (3, 3.0, np.float32(3), np.int8(3), np.uint64(3)):
        fitted = states.fitted(state(completed_updates=value), LAYOUT, "it")
        assert fitted["completed_updates"] == 3 and fitted["completed_updates"].dtype == "int64"


def test_what_no_learning_rate_or_weight_can_be():
    layout = {**LAYOUT, states.WEIGHT: ()}
    for value in (True, 1e300):
        with pytest.raises(states.StateError, match="Impossible: learning_rate = .*float32"):
            states.fitted(state(learning_rate=value, window_weight=1.0), layout, "it")
    for value in (np.nan, np.inf, -1):
        with pytest.raises(states.StateError, match="Impossible: window_weight = .*finite"):
            states.fitted(state(window_weight=value), layout, "it")


def test_a_training_that_diverged_has_a_state():
    for value in (np.nan, np.inf, -1e30):
        diverged = state(learning_rate=value, Adam__momentum__1=np.full(3, value))
        fitted = states.fitted(diverged, LAYOUT, "it")
        np.testing.assert_array_equal(fitted["Adam.momentum.1"], np.full(3, value))


STRANGE = ["Adam.momentum.\u00b2", "Adam.momentum.00", "Adam.momentum." + "9" * 5000, 5, None, ()]


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_a_name_that_is_none(name):
    bad = {**state(), name: np.zeros((2, 3))}
    with pytest.raises(states.StateError, match="Not known here"):
        states.fitted(bad, LAYOUT, "it")


def test_an_index_that_is_too_large_needs_no_memory():
    assert len(states.by_index({"Adam.momentum.999999999": np.zeros(2)})) == 1


def test_a_list_instead_of_a_state():
    with pytest.raises(TypeError, match="call `set_weights`. Received: a list"):
        states.as_arrays([np.zeros(2)])


# What Keras 2 wrote after `iterations`, for two variables. Every SGD has momentum, which tells the
# number of variables. Adam without amsgrad has one element per variable for velocity_hat.
WRITTEN = {"momentum": SHAPES, "velocity": SHAPES, "velocity_hat": [(1,), (1,)]}


@pytest.mark.parametrize("rule", [ADAM, SGD, MOMENTUM], ids=["adam", "sgd", "momentum"])
def test_from_keras_2(rule):
    rule, slots = rule
    arrays = {
        states.slot_name(rule, slot, i): np.full(WRITTEN[slot][i], i + 1.0)
        for slot in lists.KERAS_2_SLOTS[rule]
        for i in range(2)
    }
    found = lists.from_keras_2([np.asarray(4), *arrays.values()], rule, slots)
    assert found.pop("completed_updates") == 4
    assert sorted(found) == sorted(name for name in arrays if name.split(".")[1] in slots)
    for name, array in found.items():
        np.testing.assert_array_equal(array, arrays[name])


def test_a_scalar_of_keras_2():
    """Keras 2.3 wrote the scalar after `iterations`. Keras 2.2 didn't write it."""
    slots = lists.KERAS_2_SLOTS["Nadam"]
    arrays = [np.ones(2), np.ones(2)]
    found = lists.from_keras_2([np.asarray(4), np.asarray(0.25), *arrays], "Nadam", slots)
    assert found["Nadam.u_product"] == 0.25 and len(found) == 4
    with pytest.warns(UserWarning, match="doesn't hold Nadam.u_product.*: 1 is taken"):
        found = lists.from_keras_2([np.asarray(4), *arrays], "Nadam", slots)
    assert found["Nadam.u_product"] == 1 and len(found) == 4


def test_a_list_that_keras_2_can_not_have_written():
    assert lists.from_keras_2([np.asarray(1), np.zeros(2)], *ADAM) is None


def test_renumbered():
    assert list(states.renumbered({"a.0": 1, "a.1": 2, "learning_rate": 3}, {0: 5, 1: 4})) == [
        "a.5",
        "a.4",
        "learning_rate",
    ]


def test_pending_micro_batches_of_an_old_file_give_a_warning():
    assert pending.updates_in(10, 5) == 2
    with pytest.warns(UserWarning, match="3 of 5 micro-batches into a window"):
        assert pending.updates_in(13, 5) == 2


# -- a list whose names depend on the variables ------------------------------------------------

# iteration, learning rate, three slots of two variables, format, window, sums, missing gradients
LIST = [np.asarray(3), np.asarray(0.5), np.ones((2, 3)), np.ones(2), np.ones(3)]
OPEN_WINDOW = [np.asarray(n) for n in (1, 2, 5, 5)] + [
    np.ones((2, 3)),
    np.ones(3),
    np.zeros(3, int),
]


def unnamed(arrays, is_rate_known=True, weighs=False, scalars=0, accumulates=True):
    return lists.without_names(arrays, scalars, is_rate_known, accumulates, weighs)


def in_list_order(state):
    """Keras's files sort the names, and a state has its format besides."""
    state = {"state_format": np.asarray(1), **state}
    return [state[name] for name in lists.order(dict(sorted(state.items())))]


def assert_same_arrays(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("last", [OPEN_WINDOW[-1:], []])  # version 0.1 doesn't write it
@pytest.mark.parametrize("weight", [[], [np.asarray(1.5)]])
def test_a_list_tells_its_window(weight, last):
    arrays = [*LIST, *OPEN_WINDOW[:4], *weight, *OPEN_WINDOW[4:-1], *last]
    state = unnamed(arrays, weighs=bool(weight))
    assert [int(state[name]) for name in ("completed_updates", *states.WINDOW)] == [3, 2, 5, 5]
    assert state["learning_rate"] == 0.5
    assert [n for n in state if states.is_unnamed(n)] == [f"unnamed.{i}" for i in (2, 3, 4)]
    assert state["accumulator.1"].shape == (3,)
    assert_same_arrays(in_list_order(state), arrays)


def test_a_list_of_tf_keras_tells_its_window():
    counters = [np.asarray(n) for n in (1, 2, 5, 5, 1)]
    arrays = [*LIST[:1], *LIST[2:], *counters, *OPEN_WINDOW[4:-1]]
    state = unnamed(arrays)
    assert [int(state[name]) for name in ("completed_updates", *states.WINDOW)] == [2, 2, 5, 5]
    assert "learning_rate" not in state
    arrays[0], arrays[8] = np.asarray(2), np.asarray(0)  # the count is one of updates now
    assert_same_arrays(in_list_order({**state, "learning_rate": np.asarray(0.5)}), arrays)


def test_a_scalar_of_the_rule_is_no_learning_rate():
    """Lists of Nadam have `u_product` after the count on other Kerases, and at the end here."""
    assert "learning_rate" not in unnamed([*LIST[:2], *LIST[2:]], scalars=1)
    assert unnamed([*LIST, np.asarray(0.25)], scalars=1)["learning_rate"] == 0.5


def test_a_list_of_a_stock_optimizer_tells_its_count():
    state = unnamed(LIST, is_rate_known=False)
    assert [name for name in state if not states.is_unnamed(name)] == ["completed_updates"]
    assert_same_arrays(in_list_order(state), LIST)
    assert unnamed(LIST[2:]) is None
    assert unnamed([]) is None


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_a_window_of_another_length_is_no_window(cut):
    arrays = [*LIST, *OPEN_WINDOW]
    del arrays[-cut if cut > 1 else -2]
    state = unnamed(arrays)
    assert state is None or "window_position" not in state
