"""The state by names: what it holds, how training continues from it, and what it refuses."""

import h5py
import hosts
import numpy as np
import pytest
import steps
import training
from cases import CASES, quick_except, quick_first
from formats import FORMATS, STOP, assert_same, fresh
from hosts import accum, keras
from steps import copies_of, take_steps, variables
from training import LENGTH, dense_model, in_windows, weights

pytestmark = quick_except("tensorflow")

StateError = accum.StateError
ADAM = CASES["adam"]

SLOTS = {
    "sgd": (),
    "momentum": ("SGD.momentum",),
    "adam": ("Adam.momentum", "Adam.velocity"),
    "amsgrad": ("AMSGrad.momentum", "AMSGrad.velocity", "AMSGrad.velocity_hat"),
    "rmsprop": ("RMSprop.velocity",),
    "rmsprop_momentum": ("RMSprop.velocity", "RMSprop.momentum"),
    "rmsprop_centered": ("RMSprop.velocity", "RMSprop.average_gradient"),
    "rmsprop_both": ("RMSprop.velocity", "RMSprop.momentum", "RMSprop.average_gradient"),
    "nadam": ("Nadam.momentum", "Nadam.velocity"),
    "adadelta": ("Adadelta.accumulated_grad", "Adadelta.accumulated_delta_var"),
    "adagrad": ("Adagrad.accumulator",),
    "adamax": ("Adamax.momentum", "Adamax.norm"),
    "ftrl": ("Ftrl.accumulator", "Ftrl.linear"),
}
COUNTERS = {"state_format": 2 if hosts.IS_KERAS2 else 3, "completed_updates": 1}
COUNTERS.update(window_position=2, window_length=LENGTH, accum_iters=0)
SHAPES = dict(enumerate(steps.SHAPES.values()))


def built(optimizer):
    hosts.build_on(optimizer, variables())
    return optimizer


def trained(case=ADAM, micro_batches=STOP, **more):
    """Return an optimizer in the middle of its second window."""
    return take_steps(in_windows(case, **more), variables(), stop=micro_batches)


@quick_first("is_built", [True, False])
@pytest.mark.parametrize("name", [name for name in SLOTS if name in CASES])
def test_what_it_holds_and_how_a_training_continues(name, is_built):
    """To variables that exist, or are made later."""
    case, vs = CASES[name], variables()
    optimizer, other = take_steps(in_windows(case), vs, stop=STOP), in_windows(case)
    state = optimizer.get_state()
    expected = {f"{s}.{i}": SHAPES[i] for s in (*SLOTS[name], "accumulator") for i in SHAPES}
    scalars = ["learning_rate", *["window_weight"] * (not hosts.IS_KERAS2)]
    scalars += ["Nadam.u_product"] * (name == "nadam")
    expected.update(dict.fromkeys([*COUNTERS, *scalars], ()))
    names = bytes(state.pop("weight_names")).decode().split("\n")
    assert names == list(steps.SHAPES) or hosts.IS_KERAS2  # where each graph makes them unique
    assert {name: array.shape for name, array in state.items()} == expected
    assert {name: int(state[name]) for name in COUNTERS} == COUNTERS
    for part, array in state.items():
        kind = np.integer if part in COUNTERS else hosts.FLOATX
        assert np.issubdtype(array.dtype, kind) or part in scalars, part

    others = copies_of(vs)
    if is_built:
        hosts.build_on(other, others)
    other.set_state(state)
    assert (other.completed_updates, other.window_position) == (1, 2)
    found = other.get_state()
    assert is_built == ("weight_names" in found)
    assert_same({name: found[name] for name in state}, state)
    take_steps(optimizer, vs, STOP)
    take_steps(other, others, STOP)
    assert_same(other.get_state(), optimizer.get_state())
    for some, more in zip(vs, others):
        np.testing.assert_array_equal(hosts.array(some), hosts.array(more))


# Arguments that change what it holds: what is there in addition, and what isn't.
WINDOW = {"window_position", "window_length", "accum_iters"} | {f"accumulator.{i}" for i in SHAPES}
WINDOW |= set() if hosts.IS_KERAS2 else {"window_weight"}
OPTIONS = {"accum_iters_1": ({"accum_iters": 1}, set(), WINDOW)}
if not hosts.IS_KERAS2:
    SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    OPTIONS["schedule"] = ({"learning_rate": SCHEDULE}, set(), {"learning_rate"})
if hosts.IS_KERAS3:
    OPTIONS["ema"] = ({"use_ema": True}, {f"moving_average.{i}" for i in SHAPES}, set())


@pytest.mark.parametrize("option", OPTIONS)
def test_options_change_what_it_holds(option):
    """The names of its arrays depend on the options."""
    more, added, missing = OPTIONS[option]
    assert set(trained(**more).get_state()) == (set(trained().get_state()) | added) - missing


def test_amsgrad_by_either_class():
    state = trained(CASES["amsgrad"]).get_state()
    optimizer = accum.AdamAccumulate(0.5, amsgrad=True, accum_iters=2)
    optimizer.set_state(state)
    assert_same(built(optimizer).get_state(), state)


@pytest.mark.parametrize("is_built", [True, False])
def test_what_it_sets_and_what_may_be_left_out(is_built):
    """What is set afterwards is newer."""
    state = trained().get_state()
    rate, of_window = state.pop("learning_rate"), {n: state[n] for n in state if n in WINDOW}
    optimizer = in_windows(ADAM, accum_iters=7, learning_rate=0.25)
    if is_built:
        built(optimizer)
    optimizer.set_state({name: state[name] for name in state if name not in of_window})
    assert float(hosts.array(optimizer.learning_rate)) == 0.25
    assert (optimizer.completed_updates, optimizer.accum_iters) == (1, 7)
    assert optimizer.window_position == 0
    optimizer.set_state({**state, "learning_rate": rate})
    assert (optimizer.get_state()["learning_rate"], optimizer.accum_iters) == (rate, 7)
    optimizer.learning_rate, optimizer.accum_iters = 0.5, 9
    expected = {**state, "learning_rate": 0.5, "accum_iters": 9}
    assert_same(optimizer.get_state(), expected)
    if not is_built:
        assert_same(built(optimizer).get_state(), expected)


@pytest.mark.parametrize("form", ["names", "list"])
def test_a_state_of_an_optimizer_without_variables(form):
    """It has no slots. An optimizer that has made no step takes it, and any other refuses it."""
    source, optimizer, vs = in_windows(ADAM), in_windows(ADAM), variables()
    state = source.get_state()
    if form == "list":
        state = list(map(hosts.array, hosts.listed(source))) or [np.asarray(0)]
    hosts.build_on(optimizer, vs)
    optimizer.set_state(state)
    assert (optimizer.completed_updates, optimizer.window_position) == (0, 0)
    take_steps(optimizer, vs, stop=STOP)
    with pytest.raises(StateError, match=r"Missing: .*Adam\.momentum\.0"):
        optimizer.set_state(state)


# -- what it refuses. tests/pure has the tables of all misfits and of all impossible numbers -------

# The row of the state, what is changed in it, arguments of the optimizer, and what is said. RMSprop
# with momentum has as many arrays of the same shapes as Adam.
REFUSED = {
    "missing": ("adam", {"Adam.velocity.1": None}, {}, r"Missing: Adam\.velocity\.1"),
    "one more": ("adam", {"Adam.momentum.3": np.zeros(2)}, {}, r"(momentum|velocity)\.3"),
    "shape": ("adam", {"Adam.momentum.0": np.zeros((3, 2))}, {}, r"Adam\.momentum\.0 is \(3, 2\)"),
    "another rule": ("momentum", {}, {}, r"Not known here: SGD\."),
    "as many arrays": ("rmsprop_momentum", {}, {}, r"Not known here: RMSprop\."),
    "no window": ("adam", {}, {"accum_iters": 1}, "3 micro-batches into a .*accum_iters > 1, or"),
}
if not hosts.IS_KERAS2:
    no_rate = {"learning_rate": SCHEDULE}
    REFUSED["a schedule"] = ("adam", {}, no_rate, "Not known here: learning_rate")


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("name", [name for name in REFUSED if REFUSED[name][0] in CASES])
def test_a_state_that_does_not_fit_is_refused(name, is_built):
    """The optimizer keeps its state, also one that still waits for its variables."""
    row, changes, arguments, says = REFUSED[name]
    state = {**trained(CASES[row], 3).get_state(), **changes}
    state = {name: array for name, array in state.items() if array is not None}
    optimizer, vs = in_windows(ADAM, **arguments), variables()
    optimizer.set_state(trained(**arguments).get_state())
    if is_built:
        hosts.build_on(optimizer, vs)
    before, values = optimizer.get_state(), [hosts.array(v) for v in vs]
    found_at_build = False
    with pytest.raises(StateError, match=says):
        optimizer.set_state(state)
        found_at_build = not is_built
        hosts.build_on(optimizer, vs)
    if found_at_build:  # a state that fits can take the place of the other one
        optimizer.set_state(before)
    hosts.build_on(optimizer, vs)
    assert_same(optimizer.get_state(), before)
    for v, value in zip(vs, values):
        np.testing.assert_array_equal(hosts.array(v), value)


@pytest.mark.parametrize("is_built", [True] if hosts.IS_NEW_STYLE else [True, False])
def test_impossible_numbers_change_nothing(is_built):
    """By names, and as a list."""
    source, optimizer = trained(ADAM, 3), in_windows(ADAM)
    named, arrays = source.get_state(), list(map(hosts.array, hosts.listed(source)))
    optimizer.set_state(trained().get_state())
    if is_built:
        built(optimizer)
    before = optimizer.get_state()
    for value in (np.inf, 2.5, -1, 2**62, 1j, "1", None, [[1], [1, 2]]):
        with pytest.raises(StateError):
            optimizer.set_state({**named, "completed_updates": value})
        with pytest.raises(StateError):
            optimizer.set_weights([value, *arrays[1:]])
    assert_same(optimizer.get_state(), before)
    optimizer.set_weights([np.asarray(3.0), *(np.mean([a, a], axis=0) for a in arrays[1:])])
    assert optimizer.completed_updates == 3
    if not is_built:
        built(optimizer)
    assert_same(optimizer.get_state(), {**named, "completed_updates": 3})


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_list_that_does_not_fit(name):
    optimizer = trained(CASES[name])
    before, arrays = optimizer.get_state(), list(map(hosts.array, hosts.listed(optimizer)))
    for change in (arrays[:-2], [*arrays, arrays[-1]], arrays[::-1], arrays[:1] * 2):
        with pytest.raises(StateError, match="arrays.*is not a state of this .*Accumulate"):
            optimizer.set_weights(change)
        assert_same(optimizer.get_state(), before)
    for give in (optimizer.set_weights, optimizer.set_state):
        with pytest.raises(TypeError, match="`set_weights` take a dict.*Received: a NoneType"):
            give(None)


@pytest.mark.parametrize("kind", ["state"] if hosts.IS_NEW_STYLE else ["state", "list"])
def test_a_waiting_state_of_other_variables_is_refused(kind):
    """The error comes with the variables. The state isn't lost: another optimizer takes it."""
    source, optimizer, vs = trained(), in_windows(ADAM), variables()[::-1]
    if kind == "state":
        state = source.get_state()
        del state["weight_names"]  # with them, each weight would find its place
        optimizer.set_state(state)
    else:
        optimizer.set_weights(list(map(hosts.array, hosts.listed(source))))
    refusal = r"Adam\.momentum\.0 is \(4, 3\), not \(2, 3, 2\)|is not a state of|Of another shape"
    with pytest.raises(StateError, match=refusal):
        hosts.build_on(optimizer, vs)
    if hosts.IS_TF_KERAS:  # AutoGraph makes another error of most errors in a traced function
        with pytest.raises(StateError, match=refusal):
            hosts.tf.function(lambda: hosts.apply(optimizer, vs, vs))()
    other = in_windows(ADAM)
    other.set_state(optimizer.get_state())
    assert_same(built(other).get_state(), source.get_state())


@pytest.mark.parametrize("how", ["damaged", "torn"])
def test_a_broken_file(how, tmp_path):
    """The optimizer keeps its state. The error of Keras contains ours."""
    model, form = training.go_on(fresh(), 0, STOP), FORMATS["weights" if hosts.IS_KERAS3 else "h5"]
    form.save(model, tmp_path)
    before, values = model.optimizer.get_state(), weights(model)
    (path,) = tmp_path.iterdir()
    if how == "torn":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        with h5py.File(path, "r+") as file:
            group = file["optimizer/vars" if hosts.IS_KERAS3 else "optimizer_weights"]
            names = group.attrs.get("weight_names", ["Adam.velocity.1"])
            del group[names[-1]]
    says = r"Missing: Adam\.velocity\.1|doesn't exist|no write intent|truncated"
    with pytest.raises((StateError, ValueError, KeyError, OSError), match=says):
        form.load(tmp_path, lambda: model)
    assert_same(model.optimizer.get_state(), before)
    assert_same(weights(model), values)


@pytest.mark.skipif(hosts.IS_KERAS2, reason="whose files of weights hold no optimizer")
def test_a_file_without_an_optimizer(tmp_path):
    model, path = fresh(), str(tmp_path / "m.weights.h5")
    hosts.build(model)
    before = model.optimizer.get_state()
    dense_model().save_weights(path)
    with pytest.warns(UserWarning, match="holds no state of AdamAccumulate"):
        model.load_weights(path)
    assert_same(model.optimizer.get_state(), before)
