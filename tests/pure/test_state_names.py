"""The state as named arrays: what fits, what errors say about a misfit, and lists without names."""

import numpy as np
import pytest

from keras_accum.state import StateError, checks, index_of, lists
from keras_accum.state.names import is_of_window, without_window
from keras_accum.window import MISSING, WEIGHT

SHAPES = [(2, 3), (3,)]
SLOTS = ["Adam.momentum.0", "Adam.momentum.1", "Adam.velocity.0", "Adam.velocity.1"]
LAYOUT = {
    "completed_updates": (),
    "learning_rate": (),
    **dict(zip(SLOTS, SHAPES * 2)),
    "state_format": (),
    "window_position": (),
    "window_length": (),
    "accum_iters": (),
    "accumulator.0": (2, 3),
    "accumulator.1": (3,),
    MISSING: (3,),
}
NUMBERS = {"completed_updates": 3, "state_format": 1, "window_position": 2}
NUMBERS.update(window_length=5, accum_iters=5, missing_gradients=0)


def state(**changed):
    """A state that fits, in the middle of a window of five."""
    arrays = {name: np.full(shape, NUMBERS.get(name, 0.5)) for name, shape in LAYOUT.items()}
    changed = {name.replace("__", "."): np.asarray(array) for name, array in changed.items()}
    return {**arrays, **changed}


def without(*names, **changed):
    return {name: array for name, array in state(**changed).items() if name not in names}


def check(state, layout=LAYOUT, is_fresh=False):
    checks.check(state, layout, is_fresh, "the optimizer of a test")


def test_what_may_be_left_out():
    check(state())
    check(without("learning_rate", "state_format", MISSING))
    check(without_window(state()))
    with pytest.raises(StateError, match=r"Missing: accumulator\.1\."):
        check(without("accumulator.1"))


def test_slots_may_be_left_out_before_the_first_update():
    arrays = [name for name in LAYOUT if index_of(name) is not None]
    fresh = without(*arrays, MISSING, completed_updates=0, window_position=0)
    check(fresh, is_fresh=True)
    with pytest.raises(StateError, match=r"Missing: Adam\.momentum\.0"):
        check(fresh)


MISFITS = {
    "Missing: Adam.velocity.1.": without("Adam.velocity.1"),
    "Not known here: Adam.third.0.": state(Adam__third__0=np.zeros(2)),
    "Not numbers: Adam.momentum.1.": state(Adam__momentum__1=np.array(["a", "b", "c"])),
    "Of another shape: Adam.momentum.0 is (3, 2), not (2, 3).": state(
        Adam__momentum__0=np.zeros((3, 2))
    ),
    "Impossible: completed_updates = -1, must be an integer from 0 to 2147483647.": state(
        completed_updates=-1
    ),
    "Impossible: window_position = 5, must be an integer from 0 to 4": state(window_position=5),
    "Impossible: accum_iters = 0, must be an integer from 1 to": state(accum_iters=0),
    "Impossible: state_format = 2, must be at most 1: install a newer": state(state_format=2),
}


@pytest.mark.parametrize("said", MISFITS)
def test_a_state_that_does_not_fit_is_refused(said):
    with pytest.raises(StateError) as refusal:
        check(MISFITS[said])
    message = str(refusal.value)
    assert "doesn't fit the optimizer of a test" in message and said in message
    assert message.endswith("Nothing was changed.")


def test_every_misfit_is_named():
    changed = {"accumulator.1": np.zeros(2), "Adam.momentum.0": np.full((2, 3), "text")}
    bad = without("Adam.velocity.1", strange=np.zeros(1), completed_updates=np.nan, **changed)
    with pytest.raises(StateError) as refusal:
        check(bad)
    assert (
        "Missing: Adam.velocity.1; Not known here: strange; Of another shape: accumulator.1 is "
        "(2,), not (3,); Not numbers: Adam.momentum.0; Impossible: completed_updates = nan"
    ) in str(refusal.value)


COUNTERS = [name for name in NUMBERS if name != MISSING]
NO_COUNTS = [np.nan, np.inf, -np.inf, 2.5, 2**31, 2**62, 2.0**31, -1, True, 1j, "1", b"1", None]
NO_COUNTS += [object(), 2**70, np.zeros(0), [1], [[1]], np.ones(2)]


@pytest.mark.parametrize("name", COUNTERS)
def test_what_no_counter_can_be(name):
    """It is refused also while the state waits for the variables."""
    for value in NO_COUNTS:
        with pytest.raises(StateError, match=f"{name}|has format"):
            check(state(**{name: value}))
        with pytest.raises(StateError, match=f"{name}|has format"):
            checks.check_numbers(state(**{name: value}), "it")


def test_what_no_count_of_missing_gradients_can_be():
    check(state(missing_gradients=[0, 1, 3]))
    for value in (-1, 0.5, np.nan, 2**31):
        with pytest.raises(StateError, match=r"Impossible: missing_gradients = \[.*integer"):
            check(state(missing_gradients=[0, value, 3]))
    with pytest.raises(StateError, match=r"missing_gradients is \(2,\), not \(3,\)"):
        check(state(missing_gradients=[0, 3]))


def test_what_no_weight_can_be():
    layout = {**LAYOUT, WEIGHT: ()}
    check(state(window_weight=1.5), layout)
    for value in (np.nan, np.inf, -1):
        with pytest.raises(StateError, match="Impossible: window_weight = .*finite"):
            check(state(window_weight=value), layout)


def test_a_training_that_diverged_has_a_state():
    for value in (np.nan, np.inf, -1e30):
        check(state(learning_rate=value, Adam__momentum__1=np.full(3, value)))


@pytest.mark.parametrize("dtype", ["V2", ">f4"])
def test_arrays_that_are_not_numbers(dtype):
    with pytest.raises(StateError, match=r"Not numbers: Adam\.velocity\.1"):
        check(state(Adam__velocity__1=np.zeros(3, dtype)))


@pytest.mark.parametrize("name", ["Adam.momentum.\u00b2", "Adam.momentum.00", "Adam." + "9" * 5000])
def test_a_name_that_is_none(name):
    assert index_of(name) is None
    with pytest.raises(StateError, match="Not known here"):
        check({**state(), name: np.zeros((2, 3))})


# -- lists ---------------------------------------------------------------------------------------

# What Keras 2 wrote after `iterations`, for two variables. Every SGD has momentum, which tells the
# number of variables. Adam without amsgrad has one element per variable for velocity_hat.
WRITTEN = {"momentum": SHAPES, "velocity": SHAPES, "velocity_hat": [(1,), (1,)]}


@pytest.mark.parametrize(
    "rule, slots",
    [("Adam", ("momentum", "velocity")), ("SGD", ()), ("SGD", ("momentum",))],
    ids=["adam", "sgd", "momentum"],
)
def test_from_keras_2(rule, slots):
    arrays = {
        f"{rule}.{slot}.{i}": np.full(WRITTEN[slot][i], i + 1.0)
        for slot in lists.KERAS_2_SLOTS[rule]
        for i in range(2)
    }
    used = {name: array for name, array in arrays.items() if name.split(".")[1] in slots}
    shapes = {"completed_updates": (), **{name: array.shape for name, array in used.items()}}
    found = lists.named([np.asarray(4), *arrays.values()], shapes, rule)
    assert found.pop("completed_updates") == 4
    assert sorted(found) == sorted(used)
    for name, array in found.items():
        np.testing.assert_array_equal(array, arrays[name])


def test_a_list_that_keras_2_can_not_have_written():
    assert lists.named([np.asarray(1), np.zeros(2)], LAYOUT, "Adam") is None


def test_a_list_without_a_count():
    with pytest.warns(UserWarning, match="number of updates that RMSprop.*'completed_updates': n"):
        arrays = lists.prepared([np.ones(3)], "RMSprop")
    assert [array.tolist() for array in arrays] == [0, [1, 1, 1]]


def test_a_list_that_counts_micro_batches():
    assert lists.counting_updates([np.asarray(10)], 5) == [2]
    with pytest.warns(UserWarning, match="3 of 5 micro-batches into a window"):
        assert lists.counting_updates([np.asarray(13)], 5) == [2]
    with pytest.raises(ValueError, match="`accum_iters` must be a number"):
        lists.counting_updates([np.asarray(13)], None)


ARRAYS = [state()[name] for name in LAYOUT]
LIST = [a.astype(int) if name in NUMBERS else a for name, a in zip(LAYOUT, ARRAYS)]
WINDOW = {name: NUMBERS[name] for name in COUNTERS}


@pytest.mark.parametrize("last", [1, 0])
def test_a_list_of_this_keras(last):
    """A gradient must be missing before the count of missing gradients is in an older list."""
    arrays = LIST[: len(LIST) - 1 + last]
    found = lists.named(arrays, LAYOUT, "Adam")
    assert list(found) == list(LAYOUT)[: len(arrays)]
    assert lists.counters(arrays) == WINDOW


def test_a_list_of_tf_keras():
    """One slot of all variables after the other, no learning rate, and a count of skipped steps."""
    shapes = {name: LAYOUT[name] for name in LAYOUT if name != "learning_rate"}
    by_slot = dict(zip(LAYOUT, LIST))
    names = ["completed_updates", *SLOTS, *filter(is_of_window, LAYOUT)]
    arrays = [by_slot[name] for name in names]
    arrays[0] = np.asarray(4)
    arrays.insert(names.index("accum_iters") + 1, np.asarray(1))
    found = lists.named(arrays, shapes, "Adam")
    assert set(found) == set(shapes) and found["completed_updates"] == 3
    assert lists.counters(arrays) == WINDOW


def test_a_list_of_a_stock_optimizer_tells_its_count():
    assert lists.counters(LIST[:6]) == {"completed_updates": 3}
    assert lists.counters([]) == {}
