"""The state by names: what it holds, how training continues from it, and what it refuses."""

import io

import h5py
import hosts
import numpy as np
import pytest
from cases import CASES, on_each_rule
from hosts import accum, keras
from training import LENGTH, MICRO, batches, compiled, dense_model, weights

StateError = accum.StateError

SLOTS = {
    "sgd": (),
    "momentum": ("SGD.momentum",),
    "nesterov": ("SGD.momentum",),
    "adam": ("Adam.momentum", "Adam.velocity"),
    "adam_betas": ("Adam.momentum", "Adam.velocity"),
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
SCALARS = {"nadam": ("Nadam.u_product",)}
COUNTERS = {"state_format", "completed_updates", "window_position", "window_length", "accum_iters"}
SHAPES = {0: (2, 3), 1: (3,)}


def variables(dtype=None):
    random = np.random.default_rng(3)
    return [
        hosts.variable(random.uniform(0.5, 1, shape), f"v{i}", dtype) for i, shape in SHAPES.items()
    ]


def go_on(optimizer, vs, micro_batches, start=0):
    for step in range(start, start + micro_batches):
        random = np.random.default_rng(10 + step)
        dtype = hosts.array(vs[0]).dtype
        grads = [random.uniform(0.5, 1, shape).astype(dtype) for shape in SHAPES.values()]
        hosts.apply(optimizer, grads, vs)
    return optimizer


def ours(case, **more):
    return hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **more})


def trained(case, micro_batches=LENGTH + 2, **more):
    """Return an optimizer in the middle of its second window, and its variables."""
    vs = variables()
    return go_on(ours(case, **more), vs, micro_batches), vs


def assert_same(actual, expected):
    assert sorted(actual) == sorted(expected)
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


# -- what it holds -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SLOTS if name in CASES])
def test_names_shapes_and_types(name):
    state = trained(CASES[name])[0].get_state()
    per_variable = (*SLOTS[name], "accumulator")
    expected = {f"{slot}.{i}": shape for slot in per_variable for i, shape in SHAPES.items()}
    expected.update(dict.fromkeys({*COUNTERS, "learning_rate", *SCALARS.get(name, ())}, ()))
    assert {name: array.shape for name, array in state.items()} == expected
    assert {name: int(state[name]) for name in COUNTERS} == {
        "state_format": 1,
        "completed_updates": 1,
        "window_position": 2,
        "window_length": LENGTH,
        "accum_iters": LENGTH,
    }
    for name, array in state.items():
        kind = np.integer if name in COUNTERS else hosts.FLOATX
        assert np.issubdtype(array.dtype, kind) or name == "learning_rate", name


# Arguments that change what it holds: what is there in addition, and what isn't.
ADAM_SLOTS = {f"{slot}.{i}" for slot in SLOTS["adam"] for i in SHAPES}
WINDOW = {"window_position", "window_length", "accum_iters", "accumulator.0", "accumulator.1"}
OPTIONS = {"accum_iters_1": ({"accum_iters": 1}, set(), WINDOW)}
if not hosts.IS_KERAS2:
    SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    OPTIONS["schedule"] = ({"learning_rate": SCHEDULE}, set(), {"learning_rate"})
if hosts.IS_KERAS3:
    OPTIONS["ema"] = ({"use_ema": True}, {"moving_average.0", "moving_average.1"}, set())


@pytest.mark.parametrize("option", OPTIONS)
def test_options_change_what_it_holds(option):
    more, added, missing = OPTIONS[option]
    plain = {*COUNTERS, *WINDOW, "learning_rate", *ADAM_SLOTS}
    assert set(trained(CASES["adam"], **more)[0].get_state()) == (plain | added) - missing


# -- how training continues from it ----------------------------------------------------------------


@pytest.mark.parametrize("built", [True, False])
@on_each_rule
def test_continues(case, built):
    """The state goes through a NumPy file, to variables that exist or are made later."""
    optimizer, vs = trained(case)
    file = io.BytesIO()
    np.savez(file, **optimizer.get_state())
    file.seek(0)
    others = [hosts.variable(hosts.array(v), f"v{i}") for i, v in enumerate(vs)]
    other = ours(case)
    if built:
        hosts.build_on(other, others)
    other.set_state(dict(np.load(file)))
    assert (other.completed_updates, other.window_position) == (1, 2)
    assert_same(other.get_state(), optimizer.get_state())
    for some, more in ((optimizer, vs), (other, others)):
        go_on(some, more, LENGTH, start=LENGTH + 2)
    assert_same(other.get_state(), optimizer.get_state())
    for some, more in zip(vs, others):
        np.testing.assert_array_equal(hosts.array(some), hosts.array(more))


def test_amsgrad_by_either_class():
    state = trained(CASES["amsgrad"])[0].get_state()
    optimizer = accum.AdamAccumulate(0.5, amsgrad=True, accum_iters=2)
    optimizer.set_state(state)
    hosts.build_on(optimizer, variables())
    assert_same(optimizer.get_state(), state)


def test_the_state_sets_accum_iters():
    state = trained(CASES["adam"])[0].get_state()
    optimizer = ours(CASES["adam"], accum_iters=7)
    optimizer.set_state(state)
    assert optimizer.accum_iters == LENGTH
    optimizer.accum_iters = 9
    hosts.build_on(optimizer, variables())
    assert (optimizer.accum_iters, int(optimizer.get_state()["window_length"])) == (9, LENGTH)


def test_a_state_without_a_window_begins_a_fresh_one():
    state = trained(CASES["adam"], accum_iters=1)[0].get_state()
    optimizer, vs = trained(CASES["adam"])
    optimizer.set_state(state)
    new = optimizer.get_state()
    assert {name: int(new[name]) for name in COUNTERS} == {
        "state_format": 1,
        "completed_updates": LENGTH + 2,
        "window_position": 0,
        "window_length": LENGTH,
        "accum_iters": LENGTH,
    }
    assert not new["accumulator.0"].any()


@pytest.mark.parametrize("has_stepped", [True, False])
def test_a_state_of_an_optimizer_without_variables(has_stepped):
    """It has no slots. An optimizer that has made no step takes it, and any other refuses it."""
    state = ours(CASES["adam"]).get_state()
    optimizer, vs = ours(CASES["adam"]), variables()
    hosts.build_on(optimizer, vs)
    if has_stepped:
        go_on(optimizer, vs, LENGTH + 2)
        with pytest.raises(StateError, match=r"Missing: .*Adam\.momentum\.0"):
            optimizer.set_state(state)
    else:
        optimizer.set_state(state)
        assert (optimizer.completed_updates, optimizer.window_position) == (0, 0)


@pytest.mark.parametrize("built", [True, False])
def test_a_learning_rate_may_be_left_out_or_changed(built):
    state = trained(CASES["adam"])[0].get_state()
    rate = state.pop("learning_rate")
    optimizer, vs = ours(CASES["adam"], learning_rate=0.25), variables()
    if built:
        hosts.build_on(optimizer, vs)
    optimizer.set_state(state)
    assert optimizer.get_state().get("learning_rate") == (0.25 if built else None)
    assert float(hosts.array(optimizer.learning_rate)) == 0.25
    optimizer.set_state({**state, "learning_rate": rate})
    assert optimizer.get_state()["learning_rate"] == rate
    optimizer.learning_rate = 0.5
    hosts.build_on(optimizer, vs)
    assert optimizer.get_state()["learning_rate"] == 0.5


# -- what it refuses ---------------------------------------------------------------------------


def changed(state, **arrays):
    state = {**state, **{name.replace("__", "."): value for name, value in arrays.items()}}
    return {name: value for name, value in state.items() if value is not None}


# Each change of a state of Adam with an open window, and what the error says about it. tests/pure
# has the table of all misfits.
MISFITS = {
    "missing": ({"Adam__velocity__1": None}, r"Missing: Adam\.velocity\.1"),
    "no accumulator": ({"accumulator__0": None}, r"Missing: accumulator\.0"),
    "one more": ({"Adam__momentum__2": np.zeros(2)}, r"(momentum|velocity|accumulator)\.2"),
    "shape": ({"Adam__momentum__0": np.zeros((3, 2))}, r"Adam\.momentum\.0 is \(3, 2\)"),
    "position": ({"window_position": LENGTH}, f"Impossible: window_position = {LENGTH}"),
    "newer": ({"state_format": 2}, "state_format = 2, must be at most 1: install a newer"),
}


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize(("change", "says"), MISFITS.values(), ids=MISFITS)
def test_a_state_that_does_not_fit_is_refused(change, says, built):
    """The optimizer keeps its state, also one that still waits for its variables."""
    state = trained(CASES["adam"], 3)[0].get_state()
    optimizer, vs = ours(CASES["adam"]), variables()
    optimizer.set_state(trained(CASES["adam"])[0].get_state())
    if built:
        hosts.build_on(optimizer, vs)
    before, values = optimizer.get_state(), [hosts.array(v) for v in vs]
    found_at_build = False
    with pytest.raises(StateError, match=says):
        optimizer.set_state(changed(state, **change))
        found_at_build = not built
        hosts.build_on(optimizer, vs)
    if found_at_build:  # a state that fits can take the place of the other one
        optimizer.set_state(before)
        hosts.build_on(optimizer, vs)
    assert_same(optimizer.get_state(), before)
    for v, value in zip(vs, values):
        np.testing.assert_array_equal(hosts.array(v), value)


# No counter can have these values. tests/pure has the table of all values and counters.
IMPOSSIBLE = [np.inf, 2.5, -1, 2**31, 2**62, 1j, "1", None, np.zeros(0)]
IMPOSSIBLE += [np.nan, True, [[1], [1, 2]]]


def ways_to_load(optimizer):
    """Return functions that load a changed state: by names, as a list, and from Keras's files."""
    named = optimizer.get_state()
    arrays = {str(i): hosts.array(v) for i, v in enumerate(hosts.listed(optimizer))}
    assert arrays["0"] == named["completed_updates"]
    return [
        lambda o, **changed: o.set_state({**named, **changed}),
        lambda o, **changed: o.load_own_variables({**named, **changed}),
        lambda o, completed_updates: o.set_weights([*{**arrays, "0": completed_updates}.values()]),
        lambda o, completed_updates: o.load_own_variables({**arrays, "0": completed_updates}),
    ]


@pytest.mark.parametrize("built", [True] if hosts.IS_NEW_STYLE else [True, False])
def test_impossible_numbers_change_nothing(built):
    source = trained(CASES["adam"], 3)[0]
    ways, expected = ways_to_load(source), {**source.get_state(), "completed_updates": 3}
    optimizer, vs = ours(CASES["adam"]), variables()
    optimizer.set_state(trained(CASES["adam"])[0].get_state())
    if built:
        hosts.build_on(optimizer, vs)
    before = optimizer.get_state()
    for way, load in enumerate(ways):
        for value in IMPOSSIBLE[3 * way :]:
            with pytest.raises(StateError):
                load(optimizer, completed_updates=value)
    assert_same(optimizer.get_state(), before)
    for updates, load in enumerate(ways):
        load(optimizer, completed_updates=np.asarray(float(updates)))
        assert optimizer.completed_updates == updates
    if not built:
        hosts.build_on(optimizer, vs)
    assert_same(optimizer.get_state(), expected)


@pytest.mark.skipif(hosts.IS_NEW_STYLE, reason="files of Keras 2.2 have the legacy style")
def test_a_refused_list_leaves_a_count_of_micro_batches():
    """An old file counts micro-batches. The count of the next list is converted, too."""
    config = ours(CASES["adam"]).get_config()
    del config["accum_iters"]
    optimizer = accum.AdamAccumulate.with_accum_iters(LENGTH).from_config(config)
    hosts.build_on(optimizer, variables())

    def of_keras_2(*shapes):
        return [np.asarray(2 * LENGTH), *map(np.ones, shapes * 2), np.zeros(1), np.zeros(1)]

    with pytest.raises(StateError, match="Of another shape"):
        optimizer.set_weights(of_keras_2((4, 3), (3,)))
    optimizer.set_weights(of_keras_2((2, 3), (3,)))
    assert optimizer.completed_updates == 2


# A state of another optimizer: its row, arguments of ours, and what is said. RMSprop with momentum
# has as many arrays of the same shapes as Adam.
OTHERS = {
    "another rule": ("momentum", {}, r"Not known here: SGD\."),
    "as many arrays": ("rmsprop_momentum", {}, r"Not known here: RMSprop\."),
    "no accumulators": ("adam", {"accum_iters": 1}, "Not known here: .*accumulator"),
}
if not hosts.IS_KERAS2:
    OTHERS["a schedule"] = ("adam", {"learning_rate": SCHEDULE}, "Not known here: learning_rate")


@pytest.mark.parametrize("other", [name for name in OTHERS if OTHERS[name][0] in CASES])
def test_a_state_of_another_optimizer_is_refused(other):
    source, more, says = OTHERS[other]
    state = trained(CASES[source])[0].get_state()
    optimizer, _ = trained(CASES["adam"], **more)
    before = optimizer.get_state()
    with pytest.raises(StateError, match=says):
        optimizer.set_state(state)
    assert_same(optimizer.get_state(), before)


@pytest.mark.parametrize("change", [lambda w: w[:-2], lambda w: [*w, w[-1]], lambda w: w[::-1]])
def test_a_list_of_weights_that_does_not_fit(change):
    optimizer, _ = trained(CASES["adam"])
    before = optimizer.get_state()
    arrays = [hosts.array(v) for v in hosts.listed(optimizer)]
    with pytest.raises(StateError, match="arrays.*is not a state of this AdamAccumulate"):
        optimizer.set_weights(change(arrays))
    assert_same(optimizer.get_state(), before)
    optimizer.set_weights(arrays)
    assert_same(optimizer.get_state(), before)


def test_a_waiting_state_of_other_variables_is_refused():
    """The error comes with the variables. The state isn't lost: another optimizer takes it."""
    optimizer = ours(CASES["adam"])
    state = trained(CASES["adam"])[0].get_state()
    optimizer.set_state(state)
    vs, refusal = variables()[::-1], r"Adam\.momentum\.0 is \(2, 3\), not \(3,\)"
    with pytest.raises(StateError, match=refusal):
        hosts.build_on(optimizer, vs)
    if hosts.IS_TF_KERAS:  # AutoGraph makes another error of most errors in a traced function
        with pytest.raises(StateError, match=refusal):
            hosts.tf.function(lambda: hosts.apply(optimizer, vs, vs))()
    other = ours(CASES["adam"])
    other.set_state(optimizer.get_state())
    hosts.build_on(other, variables())
    assert_same(other.get_state(), state)


# -- files -------------------------------------------------------------------------------------

KERAS_FILE = "m.weights.h5" if hosts.IS_KERAS3 else "m.h5"


def saved_model(tmp_path):
    model = compiled(dense_model(), ours(CASES["adam"]), hosts.mean_squared_error())
    for x, y in batches(MICRO)[: LENGTH + 2]:
        model.train_on_batch(x, y)
    save = model.save_weights if hosts.IS_KERAS3 else model.save
    save(str(tmp_path / KERAS_FILE))
    return model


def read(model, path):
    if hosts.IS_KERAS3:
        model.load_weights(path)
    else:
        names = {"AdamAccumulate": accum.AdamAccumulate}
        keras.models.load_model(str(path), custom_objects=names)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_damaged_file(tmp_path):
    """The error of Keras contains ours, and the optimizer keeps its state."""
    model = saved_model(tmp_path)
    before, says = model.optimizer.get_state(), "doesn't exist|no write intent"
    with h5py.File(tmp_path / KERAS_FILE, "r+") as file:
        if hosts.IS_KERAS3:
            del file["optimizer/vars/Adam.velocity.1"]
            says += r"|Missing: Adam\.velocity\.1"
        else:
            group = file["optimizer_weights"]
            del group[group.attrs["weight_names"][-1]]
    with pytest.raises((StateError, ValueError, KeyError), match=says):
        read(model, tmp_path / KERAS_FILE)
    assert_same(model.optimizer.get_state(), before)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_torn_file(tmp_path):
    """Half a file changes nothing."""
    model = saved_model(tmp_path)
    before, values = model.optimizer.get_state(), weights(model)
    whole = (tmp_path / KERAS_FILE).read_bytes()
    (tmp_path / KERAS_FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError):
        read(model, tmp_path / KERAS_FILE)
    assert_same(model.optimizer.get_state(), before)
    assert_same(weights(model), values)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's HDF5 files of weights hold no optimizer")
def test_a_file_without_an_optimizer(tmp_path):
    dense_model().save_weights(tmp_path / KERAS_FILE)
    model = compiled(dense_model(), ours(CASES["adam"]))
    hosts.build(model)
    before = model.optimizer.get_state()
    with pytest.warns(UserWarning, match="holds no state of AdamAccumulate"):
        model.load_weights(tmp_path / KERAS_FILE)
    assert_same(model.optimizer.get_state(), before)


# -- LossScaleOptimizer ------------------------------------------------------------------------


@pytest.mark.skipif(
    not hosts.IS_TF_KERAS, reason="only tf_keras's LossScaleOptimizer counts skipped micro-batches"
)
def test_a_skipped_micro_batch_is_not_of_the_window():
    """Keras 2's LossScaleOptimizer counts it in `iterations`, as for a stock optimizer."""
    optimizer = ours(CASES["adam"])
    scaled, vs = hosts.loss_scaled(optimizer, initial_scale=8.0), variables("float32")
    go_on(scaled, vs, LENGTH + 1)
    hosts.apply(scaled, [np.full(shape, np.inf, "float32") for shape in SHAPES.values()], vs)
    state = optimizer.get_state()
    assert (int(state["completed_updates"]), int(state["window_position"])) == (2, 1)
    again = ours(CASES["adam"])
    hosts.build_on(again, vs)
    again.set_weights([v.numpy() for v in hosts.listed(optimizer)])
    assert_same(
        {**again.get_state(), "learning_rate": 0}, {**optimizer.get_state(), "learning_rate": 0}
    )
