"""A state before `build` and after it, on a Keras of NumPy arrays: kept, written or refused."""

import numpy as np
import pytest
from numpy_keras import SGDAccumulate, Variable

from keras_accum.engine.state import BY_CHECKPOINT, BY_LOADING, StateError

ARGUMENTS = {"learning_rate": 1.0, "momentum": 0.5}


def new(accum_iters=3, **options):
    """An optimizer without variables."""
    return SGDAccumulate(**ARGUMENTS, accum_iters=accum_iters, **options)


def built(*names, **options):
    optimizer = new(**options)
    optimizer.build([Variable([1.0, 2.0], name) for name in names or "ab"])
    return optimizer


def trained(*names, steps=4, **options):
    """An optimizer after one update, in a window that is open."""
    optimizer = built(*names, **options)
    for i in range(steps):
        optimizer.apply([np.full(2, i + 1.0) for _ in optimizer.variables], optimizer.variables)
    return optimizer


def waiting(state, **options):
    """An optimizer that keeps a state until `build`."""
    optimizer = new(**options)
    optimizer.set_state(state)
    return optimizer


def assert_same(state, other):
    assert state.keys() == other.keys()
    for name in state:
        np.testing.assert_array_equal(state[name], other[name], err_msg=name)


def build(optimizer, *names):
    optimizer.build([Variable([1.0, 2.0], name) for name in names or "ab"])
    return optimizer


def list_of(optimizer):
    return [variable.array for variable in optimizer._accumulation.state.by_name().values()]


# -- a state that waits ----------------------------------------------------------------------------


def test_it_is_read_as_it_was_given():
    state = trained().get_state()
    optimizer = waiting(state)
    assert_same(optimizer.get_state(), state)
    assert_same(optimizer._accumulation.state.raw(), state)
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 1)
    assert int(optimizer.iterations.array) == 1
    assert_same(build(optimizer).get_state(), state)
    assert not optimizer._accumulation.state.is_waiting


def test_a_list_has_places_for_names():
    arrays = list_of(trained())
    optimizer = new()
    optimizer.set_weights(arrays)
    assert_same(optimizer.get_state(), {str(i): array for i, array in enumerate(arrays)})
    assert_same(waiting(optimizer.get_state()).get_state(), optimizer.get_state())
    optimizer.accum_iters = 5  # has no place in it
    with pytest.raises(ValueError, match="`get_state` before the optimizer has its variables"):
        optimizer.get_state()
    build(optimizer)
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 1)
    assert optimizer.accum_iters == 5


def test_what_you_set_meanwhile_wins():
    state = trained().get_state()
    optimizer = waiting(state)
    optimizer.accum_iters, optimizer.learning_rate = 5, 0.25
    newer = {"accum_iters": 5, "learning_rate": 0.25}
    assert_same(optimizer.get_state(), {**state, **newer})
    found = build(optimizer).get_state()
    assert_same(found, {**state, **newer})
    assert (optimizer.accum_iters, optimizer.learning_rate) == (5, 0.25)


def test_a_rate_is_that_of_the_state():
    state = {**trained().get_state(), "learning_rate": np.asarray(0.125)}
    optimizer = waiting(state)
    assert optimizer.learning_rate == 0.125
    assert build(optimizer).learning_rate == 0.125
    optimizer = new()
    optimizer._accumulation.state.load(state, with_rate=False)
    assert optimizer.learning_rate == 1.0 and build(optimizer).learning_rate == 1.0


def test_what_can_fit_no_variables_is_refused_at_once():
    state = trained().get_state()
    for wrong, says in (
        ({**state, "Adam.velocity.0": np.zeros(2)}, "Not known here: Adam.velocity.0"),
        ({**state, "window_position": np.asarray(-1)}, "window_position = -1"),
        ({n: state[n] for n in state if n != "completed_updates"}, "Missing: completed_updates"),
    ):
        optimizer = new()
        with pytest.raises(StateError, match=says):
            optimizer.set_state(wrong)
        assert not optimizer._accumulation.state.is_waiting and optimizer.completed_updates == 0
    with pytest.raises(StateError, match="1 micro-batches into a window"):
        new(accum_iters=1).set_state(state)
    optimizer = new()  # `load_weights` says more than a check of rules
    optimizer.load_own_variables({**state, "Adam.velocity.0": np.zeros(2)})
    assert optimizer._accumulation.state.is_waiting


def test_one_that_does_not_fit_the_variables_waits():
    optimizer = waiting(trained("a", "b", "c").get_state())
    with pytest.raises(StateError, match="for 3 trainable variables, and the optimizer has 2"):
        build(optimizer)
    assert optimizer._accumulation.state.is_waiting
    optimizer._accumulation.state.skip(0.5)
    assert not optimizer._accumulation.state.is_waiting
    assert (optimizer.completed_updates, optimizer.learning_rate) == (0, 0.5)


def test_who_will_still_give_one():
    optimizer = new()
    optimizer._accumulation.state.check_loader()
    optimizer._accumulation.state.expect(BY_LOADING)
    with pytest.raises(ValueError, match="built when there were no trainable variables"):
        optimizer._accumulation.state.check_loader()
    optimizer._accumulation.state.expect(BY_CHECKPOINT)
    optimizer._accumulation.state.check_loader()
    with pytest.raises(StateError, match="TensorFlow keeps the values of a checkpoint"):
        optimizer.get_state()
    assert build(optimizer).get_state()["completed_updates"] == 0


def test_methods_that_need_variables():
    with pytest.raises(ValueError, match="`set_state.by_name=True.` before the optimizer has its"):
        new().set_state(trained().get_state(), by_name=True)


# -- a state that is written -----------------------------------------------------------------------


def test_a_state_without_a_window_begins_one():
    state = {n: a for n, a in trained(steps=3).get_state().items() if "momentum" in n}
    state["completed_updates"] = np.asarray(1)
    optimizer = trained()
    optimizer.set_state(state)
    found = optimizer.get_state()
    assert optimizer.window_position == 0 and not found["accumulator.0"].any()
    assert found["state_format"] == 3 and optimizer.accum_iters == 3


def test_a_state_of_trained_slots_only():
    """A new optimizer may take a new state without slots; a trained one may not."""
    fresh = {"completed_updates": np.asarray(0)}
    built().set_state(fresh)
    with pytest.raises(StateError, match="Missing: SGD.momentum.0"):
        trained().set_state(fresh)


def test_micro_batches_without_weights_count_as_one_each():
    state = trained(reduction="mean").get_state()
    optimizer = built(reduction="weighted")
    optimizer.set_state(state)
    assert optimizer.get_state()["window_weight"] == optimizer.window_position == 1


def test_sums_of_the_first_format_are_scaled():
    """Keras 3's `loss_scale_factor` was in the sums."""
    state = trained().get_state()
    for version, divisor in ((1, 4), (2, 1)):
        optimizer = built()
        optimizer.loss_scale_factor = 4.0
        optimizer.set_state({**state, "state_format": np.asarray(version)})
        found = optimizer.get_state()
        np.testing.assert_array_equal(found["accumulator.1"] * divisor, state["accumulator.1"])
        np.testing.assert_array_equal(found["SGD.momentum.1"], state["SGD.momentum.1"])
        assert found["state_format"] == 2


def test_the_types_of_a_state():
    optimizer = built()
    state = trained().get_state()
    as_others = {name: array.tolist() for name, array in state.items()}
    as_others["completed_updates"] = np.asarray(1, "uint8")
    optimizer.set_state(as_others)
    assert_same(optimizer.get_state(), state)
    with pytest.raises(TypeError, match="take a dictionary.*Received: a str"):
        optimizer.set_state("state.npz")
    with pytest.raises(StateError, match="Not numbers: accumulator.0"):
        optimizer.set_state({**state, "accumulator.0": [[1, 2], [3]]})


def test_a_list_that_counts_micro_batches():
    """As files of the copied class do."""
    arrays = list_of(trained(accum_iters=1, steps=12))
    optimizer = new()
    optimizer._accumulation.state.counts_micro_batches = True
    optimizer.set_weights([np.asarray(12), *arrays[1:]])
    assert build(optimizer).completed_updates == 4
    assert not optimizer._accumulation.state.counts_micro_batches


# -- weights by name, and files --------------------------------------------------------------------


def test_weights_by_name():
    """The one that both have continues, and the other one keeps what it has."""
    state = trained("a", "b").get_state()
    optimizer = built("b", "c")
    optimizer.set_state(state, by_name=True)
    found = optimizer.get_state()
    np.testing.assert_array_equal(found["SGD.momentum.0"], state["SGD.momentum.1"])
    np.testing.assert_array_equal(found["accumulator.0"], state["accumulator.1"])
    assert not found["SGD.momentum.1"].any() and not found["accumulator.1"].any()
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 1)
    with pytest.raises(StateError, match="no weight is in both"):
        built("c", "d").set_state(state, by_name=True)


def test_keys_of_weights_go_before_their_names():
    state = trained("a", "b").get_state()
    optimizer = built("a", "b")
    one, two = map(id, optimizer.variables)
    arrays = {name: array for name, array in state.items() if name != "weight_names"}
    for i in range(2):  # the weights can be told apart
        arrays[f"SGD.momentum.{i}"] = np.full(2, i)
    optimizer._accumulation.state.load(arrays, keys=(two, one))
    found = optimizer.get_state()
    assert found["SGD.momentum.0"].tolist() == [1, 1] and found["SGD.momentum.1"].tolist() == [0, 0]
    unbuilt = new()
    unbuilt._accumulation.state.load(arrays, keys=(two, one))
    assert unbuilt._accumulation.state.keys() == (two, one)
    assert optimizer._accumulation.state.keys() == ()


def test_a_file_for_other_weights():
    """Before the first update, the optimizer starts afresh, as Keras's own does."""
    state = trained("a", "b", "c").get_state()
    optimizer = built()
    with pytest.warns(UserWarning, match="for 3 trainable variables, and .* has 2.*starts afresh"):
        optimizer.load_own_variables(state)
    assert optimizer.completed_updates == 0
    with pytest.raises(StateError, match="for 3 trainable variables, and the optimizer has 2"):
        trained().load_own_variables(state)


def test_a_file_without_a_state():
    optimizer = trained()
    before = optimizer.get_state()
    with pytest.warns(UserWarning, match="The file holds no state of SGDAccumulate"):
        optimizer.load_own_variables({})
    assert_same(optimizer.get_state(), before)


def test_a_file_has_the_names_of_the_state():
    optimizer, file = trained(), {}
    optimizer.save_own_variables(file)
    again = built()
    again.load_own_variables(file)
    assert_same(again.get_state(), optimizer.get_state())
