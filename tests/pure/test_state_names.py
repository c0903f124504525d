"""The state as named arrays: what fits, what errors say about a misfit, and lists without names."""

import itertools

import numpy as np
import pytest

from keras_accum.engine.state import StateError, checks, lists, parse_index
from keras_accum.engine.state.checks import drop_window
from keras_accum.engine.window import MISSING, WEIGHT

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
COUNTERS = [name for name in NUMBERS if name != MISSING]
WINDOW = [name for name in LAYOUT if name in NUMBERS or name.startswith("accumulator")][1:]


def state(*without, **changed):
    """A state that fits, in the middle of a window of five. `__` in a name stands for a dot."""
    arrays = {name: np.full(shape, NUMBERS.get(name, 0.5)) for name, shape in LAYOUT.items()}
    arrays.update({name.replace("__", "."): np.asarray(a) for name, a in changed.items()})
    return {name: array for name, array in arrays.items() if name not in without}


def check(state, layout=LAYOUT, is_fresh=False):
    checks.check_arrays(state, "the optimizer of a test", layout, is_fresh)


def test_what_may_be_left_out():
    check(state())
    check(state("learning_rate", "state_format", MISSING))
    closed = state(window_position=0)
    check(drop_window(closed, "it"))
    with pytest.raises(StateError, match="fit it: it is 2 micro-batches into a window"):
        drop_window(state(), "it")
    for zeros in ([*WINDOW, MISSING], ["window_length", "accum_iters"]):  # as after a reset
        check({**closed, **{name: np.zeros_like(closed[name]) for name in zeros}})
    arrays = [name for name in LAYOUT if parse_index(name) is not None]
    fresh = state(*arrays, MISSING, completed_updates=0, window_position=0)
    check(fresh, is_fresh=True)
    check({"completed_updates": np.asarray(0)}, is_fresh=True)
    later = [{**fresh, name: np.asarray(1)} for name in ("completed_updates", "window_position")]
    for taken, is_fresh in (fresh, False), (later[0], True), (later[1], True):
        with pytest.raises(StateError, match=r"Missing: Adam\.momentum\.0"):
            check(taken, is_fresh=is_fresh)


def test_a_part_of_a_window():
    """A sum without its count would be divided by the wrong number."""
    of_window = WINDOW[1:]  # without the format
    check(state(*(name for name in of_window if name != "accum_iters")))  # only the next length
    for number in range(1, len(of_window) - 1):
        for without in set(itertools.combinations(of_window, number)) - {(MISSING,)}:
            with pytest.raises(StateError, match="Missing: "):
                check(state(*without))


def test_a_training_that_diverged_has_a_state():
    for value in (np.nan, np.inf, -1e30):
        check(state(learning_rate=value, Adam__momentum__1=np.full(3, value)))


WEIGHED = {**LAYOUT, WEIGHT: ()}
MISFITS = [
    (state("Adam.velocity.1"), "Missing: Adam.velocity.1"),
    (state(Adam__third__0=np.zeros(2)), "Not known here: Adam.third.0"),
    (state(Adam__momentum__00=np.zeros((2, 3))), "Not known here: Adam.momentum.00"),
    (state(Adam__velocity__1=["a", "b", "c"]), "Not numbers: Adam.velocity.1"),
    (state(Adam__velocity__1=np.zeros(3, "V2")), "Not numbers: Adam.velocity.1"),
    (state(Adam__velocity__1=np.zeros(3, ">f4")), "Not numbers: Adam.velocity.1"),
    (state(Adam__momentum__0=np.zeros((3, 2))), "Adam.momentum.0 is (3, 2), not (2, 3)"),
    (state(window_position=-5), "window_position = -5, must be an integer from 0 to 2147483647"),
    (state(accum_iters=-1), "accum_iters = -1, must be an integer from 0 to 2147483647"),
    (state(window_length=0), "window_position = 2, must be an integer from 0 to 0"),
    (state(state_format=4), "state_format = 4, must be at most 3: install a newer"),
    (state(missing_gradients=[0, -1, 3]), "Impossible: missing_gradients = ["),
    (state(missing_gradients=[0, 2**31, 3]), "Impossible: missing_gradients = ["),
    (state(missing_gradients=[0, 3]), "missing_gradients is (2,), not (3,)"),
    (state(window_weight=np.nan), "Impossible: window_weight = nan"),
    (state(window_weight=-np.inf), "Impossible: window_weight = -inf"),
]


@pytest.mark.parametrize("misfit, said", MISFITS, ids=[said for _, said in MISFITS])
def test_a_state_that_does_not_fit_is_refused(misfit, said):
    for weight in (1.5, -1.5):
        check(state(missing_gradients=[0, 1, 3], window_weight=weight), WEIGHED)
    with pytest.raises(StateError) as refusal:
        check(misfit, WEIGHED if WEIGHT in misfit else LAYOUT)
    message = str(refusal.value)
    assert "doesn't fit the optimizer of a test" in message and said in message
    assert message.endswith("Nothing was changed.")


def test_every_misfit_is_named():
    changed = {"accumulator__1": np.zeros(2), "Adam__momentum__0": np.full((2, 3), "text")}
    bad = state("Adam.velocity.1", strange=np.zeros(1), completed_updates=np.nan, **changed)
    with pytest.raises(StateError) as refusal:
        check(bad)
    for name in ("Adam.velocity.1", "strange", "accumulator.1", "Adam.momentum.0", "= nan"):
        assert name in str(refusal.value)


def test_many_misfits_are_shortened():
    strange = {f"strange_{i}": np.zeros(()) for i in range(9)}
    with pytest.raises(StateError, match="strange_7, and 1 more. Nothing"):
        check({**state(), **strange})
    del strange["strange_8"]
    with pytest.raises(StateError, match="strange_6, strange_7. Nothing"):
        check({**state(), **strange})


def test_an_open_window_with_weights():
    """Micro-batches that count as 1 each fit an optimizer without weights."""
    check(state(window_weight=2))
    check(state(window_weight=1.5, window_position=0))
    check(state(window_weight=1.5), WEIGHED)
    with pytest.raises(StateError, match="weights: load it with reduction='auto'"):
        check(state(window_weight=1.5))


NO_COUNTS = [np.nan, np.inf, -np.inf, 2.5, 2**31, 2**62, 2.0**31, -1, True, 1j, "1", b"1", None]
NO_COUNTS += [object(), 2**70, np.zeros(0), [1], [[1]], np.ones(2)]


@pytest.mark.parametrize("name", COUNTERS)
def test_what_no_counter_can_be(name):
    """It is refused also while the state waits for the variables."""
    for value in NO_COUNTS:
        with pytest.raises(StateError, match=name):
            check(state(**{name: value}))
        with pytest.raises(StateError, match=name):
            checks.check_arrays(state(**{name: value}), "it")


@pytest.mark.parametrize("index", ["\u00b2", "00", "9" * 5000])
def test_an_index_that_is_none(index):
    assert parse_index(f"Adam.momentum.{index}") is None


@pytest.mark.parametrize("slots", [(), ("SGD.momentum",), ("Adam.momentum", "Adam.velocity")])
def test_a_list_that_is_no_state(slots):
    """Torn, damaged, of a deeper model, of other types: of SGD as of Adam."""
    rule = "Adam" if len(slots) == 2 else "SGD"
    shapes = {name: LAYOUT[name] for name in ("completed_updates", "learning_rate")}
    shapes.update((f"{slot}.{i}", shape) for slot in slots for i, shape in enumerate(SHAPES))
    of_stock = len(shapes)
    shapes.update((name, LAYOUT[name]) for name in WINDOW)
    good = [np.full(shape, NUMBERS.get(name, 0.5)) for name, shape in shapes.items()]
    count, floats = np.asarray(4), [np.ones(s) for s in SHAPES * (1 if rule == "SGD" else 2)]
    floats += [np.ones(1)] * (len(floats) - 2)
    means = [np.mean([array, array], axis=0) for array in good]  # of two workers' states
    without_rate = [good[:1] + good[2:], good[:1] + good[2:of_stock]]  # tf_keras's newer style
    for arrays in (good, means, good[:of_stock], [count, *floats], *without_rate):
        lists.fit(arrays, shapes, SHAPES, rule, "it")
    assert lists.find_counters(means) == lists.find_counters(good)
    whole = of_stock, 1 if not slots else of_stock  # with the rate and without
    bad = [good[:length] for length in range(len(good)) if length not in whole]
    bad += [good[:place] + good[place + 1 :] for place in range(2, len(good))]
    bad += [[array + (name == "window_position") / 2 for name, array in zip(shapes, good)]]
    bad += [[*good, good[-1]], good[::-1], [*good[:-1], np.zeros(4)]]
    bad += [[count, *arrays] for arrays in (floats[:-1], floats[::-1], floats * 2)]
    for kind in ("int64", "complex64", "str"):
        bad += [[*good[:-2], good[-2].astype(kind), good[-1]]]
        bad += [[count, *floats[:-1], floats[-1].astype(kind)]]
    for arrays in bad:
        with pytest.raises(StateError, match="A list of .* not a state of it"):
            lists.fit(arrays, shapes, SHAPES, rule, "it")


def test_a_list_without_a_count():
    with pytest.warns(UserWarning, match="number of updates that RMSprop.*'completed_updates': n"):
        arrays = lists.prepare([np.ones(3)], "RMSprop")
    assert [array.tolist() for array in arrays] == [0, [1, 1, 1]]


def test_a_list_of_a_loss_scale_optimizer():
    """Its iterations, a rate of zero, its steps and its scale come first."""
    own = [np.asarray(7), np.asarray(0.5), np.ones(3), np.ones(2)]
    of_scale = [np.asarray(9), np.asarray(0.0), np.asarray(4), np.asarray(2.0**15)]
    with pytest.warns(UserWarning, match="the loss scale is ignored, everything else is loaded"):
        assert lists.prepare(of_scale + own, "Adam") == own
    of_scale[1] = np.asarray(0.5)
    for arrays in (own, of_scale + own, [], own[2:]):
        assert lists.prepare(arrays, "Adam") is arrays


def test_a_list_that_counts_micro_batches():
    assert lists.count_updates([], 5) == []
    updates = [np.asarray(n) for n in (13, 1, 3, 5, 5)]  # its window's counters say so
    assert lists.count_updates(updates, 5) is updates
    assert lists.count_updates([np.asarray(10)], 5) == [2]
    with pytest.warns(UserWarning, match="3 of 5 micro-batches into a window"):
        assert lists.count_updates([np.asarray(13)], 5) == [2]


# What an optimizer has here, and the order of a file. Only the order tells which slot is which.
BY_VARIABLE = ["Adam.momentum.0", "Adam.velocity.0", "Adam.momentum.1", "Adam.velocity.1"]
FTRL = ["Ftrl.accumulator.0", "Ftrl.linear.0", "Ftrl.accumulator.1", "Ftrl.linear.1"]
MOMENTA = ["SGD.momentum.0", "SGD.momentum.1"]
UNUSED = ["Adam.velocity_hat.0", "Adam.velocity_hat.1"]
HERE = ["completed_updates", "learning_rate", *BY_VARIABLE, *WINDOW]
AFTER = HERE.index("accum_iters") + 1
WITH_WEIGHT = [*HERE[:AFTER], WEIGHT, *HERE[AFTER:]]
WRITTEN_BY = {
    "this Keras": (HERE, HERE),
    "a stock optimizer": (HERE, HERE[:6]),
    "tf_keras": (HERE, [HERE[0], *SLOTS, *WINDOW]),
    "Ftrl of tf_keras": ([*HERE[:2], *FTRL, *WINDOW], [HERE[0], *FTRL, *WINDOW]),
    "Keras 2": (HERE, [HERE[0], *SLOTS, *WINDOW[:-1]]),
    # Adam of Keras 2 has an element for each slot of AMSGrad, and each SGD has momentum.
    "a stock Adam of Keras 2": (HERE, [HERE[0], *SLOTS, *UNUSED]),
    "a stock SGD of Keras 2": ([*HERE[:2], *WINDOW], [HERE[0], *MOMENTA]),
    "a stock momentum of Keras 2": ([*HERE[:2], *MOMENTA, *WINDOW], [HERE[0], *MOMENTA]),
    "an optimizer without a schedule": ([HERE[0], *HERE[2:]], HERE),
    "an optimizer with weights": (HERE, WITH_WEIGHT),
    "an optimizer without weights": (WITH_WEIGHT, HERE),
    "tf_keras with weights": (HERE, [HERE[0], *SLOTS, *WITH_WEIGHT[6:]]),
}


@pytest.mark.parametrize("here, order", WRITTEN_BY.values(), ids=WRITTEN_BY)
def test_the_order_of_a_file(here, order):
    written = {name: () if parse_index(name) is None else (2,) for name in here + order}
    written.update({**dict.fromkeys(UNUSED, (1,)), MISSING: (3,)})
    shapes = {name: written[name] for name in here}
    numbers = {name: NUMBERS.get(name, place + 0.5) for place, name in enumerate(order)}
    arrays = [np.full(written[name], number) for name, number in numbers.items()]
    rule = "Ftrl" if FTRL[0] in here else "SGD" if MOMENTA[0] in order else "Adam"
    found = lists.fit(arrays, shapes, [(2,)] * 2, rule, "it")
    assert {name: array.flat[0] for name, array in found.items()} == {
        name: number for name, number in numbers.items() if name in (*here, WEIGHT)
    }
    counters = {name: numbers[name] for name in (*COUNTERS, WEIGHT) if name in numbers}
    assert lists.find_counters(arrays) == counters


def test_an_empty_list_tells_nothing():
    assert lists.find_counters([]) == {}
