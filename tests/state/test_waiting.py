"""Every read, save, copy and change sees a state, also one that waits for its variables."""

import copy
import pickle
import re

import formats
import hosts
import numpy as np
import pytest
from cases import quick_first, quick_once_on_keras3, third_by_torch
from formats import ALL, STOP, assert_same, eager, fresh, from_list, model_with, through
from hosts import accum, keras
from training import LENGTH, MICRO, compiled, data, dense_model, fit, go_on

pytestmark = quick_once_on_keras3

keras3_only = pytest.mark.skipif(not hosts.IS_KERAS3, reason="about lists and trees of Keras 3")

REMEDY = r"optimizer\.build\(model\.trainable_variables\)"
if hosts.IS_KERAS2:
    REMEDY = r"model\._make_train_function\(\)"


def like(source, optimizer=None):
    """Return a fresh model with the weights of `source`."""
    model = model_with(optimizer) if optimizer else fresh()
    model.set_weights(source.get_weights())
    return model


def everything(model):
    """A list has no names before `build`: read a copy that has its variables."""
    if hosts.IS_KERAS3 and not model.optimizer.built or "0" in model.optimizer.get_state():
        model = like(model, pickle.loads(pickle.dumps(model.optimizer)))
        hosts.build(model)
    return formats.everything(model)


@pytest.fixture
def source():
    return go_on(fresh(), 0, STOP)


# -- how a state is passed on: act(model, folder) returns a model with the state -------------------


def trained(source, folder):
    return go_on(fresh(), 0, STOP)


def from_sorted_state(source, folder):
    """The names of a state may come in any order."""
    model = like(source)
    model.optimizer.set_state(dict(sorted(source.optimizer.get_state().items())))
    return model


def deepcopied(model, folder):
    return like(model, copy.deepcopy(model.optimizer))


def from_other(model, folder):
    model.compile(accum.AdamAccumulate.from_optimizer(model.optimizer), model.loss)
    return eager(model)


def from_state_tree(model, folder):
    tree = model.get_state_tree(value_format="numpy_array")
    for variable in model.optimizer.variables:
        hosts.assign(variable, np.zeros_like(hosts.array(variable)))
    model.set_state_tree(tree)
    return model


# -- how a state is changed ------------------------------------------------------------------------

LATER = 2 * LENGTH + 3


def set_length_and_rate(model, folder):
    """A copy has what was set while the state waited."""
    model.optimizer.accum_iters, model.optimizer.learning_rate = 2, 0.5
    model = through("pickle")(model, folder)
    assert model.optimizer.accum_iters == 2
    return model


def apply_partial_window(model, folder):
    model.optimizer.apply_partial_window()
    assert model.optimizer.completed_updates == 2
    return model


def newer_state(model, folder):
    later = go_on(fresh(), 0, LATER)
    model.set_weights(later.get_weights())
    model.optimizer.set_state(later.optimizer.get_state())
    return model


def newer_checkpoint(model, folder):
    folder = folder / "newer"
    ALL["checkpoint"].save(go_on(fresh(), 0, LATER), folder)
    return ALL["checkpoint"].load(folder, lambda: model)


def assign_to_variables(model, folder):
    variables = hosts.stock_variables(model.optimizer)
    slots = [v for v in variables if re.search("velocity|(^|/)v", v.name)]
    assert len(slots) == 4
    for slot in slots:
        hosts.assign(slot, hosts.array(slot) + 1)
    return model


# The ways in which a state comes to wait: of formats, those whose optimizer the host doesn't build.
WAYS = {"state": from_sorted_state, "pickle": through("pickle"), "training": trained}
KEEP = {form: through(form) for form in ALL if form not in ("registered", "saved_model")}
KEEP.update(other=from_other, deepcopy=deepcopied, list=from_list)
CHANGES = [set_length_and_rate, apply_partial_window, newer_state]
NEED_VARIABLES = ["apply_partial_window"]
BUILT = ["training"]  # and where the model is known, so that the optimizer has been built
if hosts.IS_KERAS3:
    WAYS["h5"] = through("h5")
    KEEP["state_tree"] = from_state_tree
    CHANGES += [assign_to_variables]
    NEED_VARIABLES += ["assign_to_variables", "state_tree", "h5"]  # a list needs them, too
    del KEEP["list"]
elif hosts.IS_KERAS2:  # where each row compiles several steps
    NEED_VARIABLES += ["h5", "list"]
    del WAYS["training"], KEEP["deepcopy"]
else:
    BUILT += ["keras", "checkpoint"][: 1 + hosts.IS_LEGACY]
    WAYS.update({form: through(form) for form in BUILT[1:]})
    CHANGES += [assign_to_variables, newer_checkpoint]
if hosts.IS_NEW_STYLE:  # which has no get_weights
    del KEEP["list"]
CHANGES = {act.__name__: act for act in CHANGES}
# What is done with a state however it came to wait.
ALWAYS = ["read", "pickle", "h5", "newer_state", "apply_partial_window"]
ROWS = [("state", act) for act in ALWAYS]
ROWS += [("state", act) for act in (*KEEP, *CHANGES) if act not in ALWAYS]
if not hosts.IS_KERAS3 or hosts.IS_TORCH:  # the other backends would compile for a minute
    ROWS += [(way, act) for way in WAYS if way != "state" for act in ALWAYS]


@third_by_torch
@quick_first("way, act", ROWS)
def test_a_state(way, act, source, tmp_path):
    """It is read, saved, copied and changed, or the remedy is said. The original stays."""
    model = WAYS[way](source, tmp_path)
    if act in NEED_VARIABLES and way not in BUILT:
        with pytest.raises(ValueError, match=REMEDY):
            {**KEEP, **CHANGES}[act](model, tmp_path)
        assert_same(everything(model), everything(source))
        hosts.build(model)
    original, before = model, everything(model)
    if act in CHANGES:
        model, source = (CHANGES[act](each, tmp_path) for each in (model, source))
        hosts.build(model)
    elif act in KEEP:
        model = KEEP[act](model, tmp_path)
    assert_same(everything(model), everything(source))
    if act == "read":
        optimizer = model.optimizer
        assert (optimizer.completed_updates, optimizer.window_position) == (1, 2)
        assert int(hosts.array(optimizer.iterations)) == 1
    assert_same(everything(go_on(model, STOP)), everything(go_on(source, STOP)))
    if act in KEEP and model is not original:
        assert_same(everything(original), before)


@keras3_only
@pytest.mark.parametrize("built_by", ["fit", "build"])
def test_state_trees(built_by):
    """Variables have the same paths whoever built the optimizer. Keras ignores unknown paths."""
    models = []
    for is_built, micro_batches in ((built_by == "build", STOP), (built_by == "fit", LENGTH + 1)):
        optimizer = hosts.ours("Adam", accum_iters=LENGTH, name="adam")
        models.append(compiled(dense_model(), optimizer))
        if is_built:
            hosts.build(models[-1])
        arrays = [array[: micro_batches * MICRO] for array in data()]
        fit(models[-1], MICRO, arrays=arrays, epochs=1)
    source, target = models
    target.set_state_tree(source.get_state_tree(value_format="numpy_array"))
    assert_same(everything(target), everything(source))


@keras3_only
def test_a_list_that_waits_has_a_rate(source):
    """There is no place for another one in the list."""
    optimizer = from_list(source, None).optimizer
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    for given, rate in (None, 2**-5), (0.5, 0.5), (schedule, None):
        given = {} if given is None else {"learning_rate": given}
        again = accum.AdamAccumulate.from_optimizer(optimizer, accum_iters=7, **given)
        hosts.build_on(again, source.trainable_variables)
        assert again.get_state().get("learning_rate") == rate
        assert (again.window_position, again.accum_iters) == (2, 7)
    optimizer.learning_rate = 0.5
    with pytest.raises(ValueError, match=REMEDY):
        optimizer.get_state()


@pytest.mark.parametrize("accum_iters", [1, LENGTH])
def test_a_list_of_the_stock_optimizer(accum_iters):
    """The list has no window, whose sums would tell the shapes."""
    source = go_on(model_with(hosts.stock("Adam")), 0, 3)
    model = model_with(hosts.ours("Adam", accum_iters=accum_iters))
    model.optimizer.set_weights(list(map(hosts.array, hosts.listed(source.optimizer))))
    hosts.build(model)
    expected = accum.AdamAccumulate.from_optimizer(source.optimizer).get_state()
    found = model.optimizer.get_state()
    assert found["completed_updates"] == 3
    slots = [name for name in expected if name.startswith("Adam.")]
    assert len(slots) == 8
    assert_same({name: found[name] for name in slots}, {name: expected[name] for name in slots})


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="checkpoints build no other optimizers")
def test_a_checkpoint_of_a_custom_loop(tmp_path):
    """No model tells the order of the variables: the count of updates is all that can be read."""
    values = [np.ones((2, 3)), np.ones(3)]

    def made():
        vs = [hosts.variable(value, f"v{i}") for i, value in enumerate(values)]
        optimizer = hosts.ours("Adam", learning_rate=0.5, accum_iters=3)
        return optimizer, vs, hosts.tf.train.Checkpoint(b=vs[0], a=vs[1], optimizer=optimizer)

    optimizer, vs, whole = made()
    for _ in range(4):
        hosts.apply(optimizer, values, vs)
    path = whole.save(str(tmp_path / "own"))
    other, others, whole = made()
    whole.restore(path)
    assert (other.completed_updates, other.accum_iters) == (1, 3)
    for read in (other.get_state, lambda: pickle.dumps(other)):
        with pytest.raises(accum.StateError, match=REMEDY):
            read()
    other.build(others)
    assert_same(other.get_state(), optimizer.get_state())


@pytest.mark.skipif(hosts.IS_KERAS2, reason="its files of weights hold no optimizer")
@pytest.mark.skipif(hosts.IS_LEGACY, reason="stock files of weights hold no legacy optimizer")
@pytest.mark.parametrize("length", [LENGTH, 1])
def test_weights_of_another_model(length, tmp_path):
    """With `skip_mismatch` the optimizer starts afresh; else the error comes at loading."""

    def model_of(width, rate, name="Adam", trains=True):
        optimizer = hosts.ours(name, learning_rate=rate, accum_iters=length)
        first = keras.layers.Dense(3, name="a", trainable=trains)
        layers = [first, keras.layers.Dense(width, name="b")]
        return compiled(hosts.sequential((3,), layers), optimizer)

    old, path = model_of(4, 0.5), str(tmp_path / "old.weights.h5")
    x, y = data()
    go_on(old, 0, 3, (x, np.tile(y, 2)))
    old.save_weights(path)
    with pytest.raises(accum.StateError, match="skip_mis" if hosts.IS_KERAS3 else "doesn't fit"):
        model_of(4, 0.25, "SGD").load_weights(path)
    new = model_of(2, 0.25)
    with pytest.warns(UserWarning):
        new.load_weights(path, skip_mismatch=True)
    found = [new]
    if length > 1:
        found.append(model_of(4, 0.25, trains=False))
        with pytest.warns(UserWarning, match="Skipping"):
            found[1].load_weights(path)
    for model in found:
        np.testing.assert_array_equal(model.get_weights()[0], old.get_weights()[0])
        assert model.optimizer.completed_updates == 0
        assert hosts.array(model.optimizer.learning_rate) == 0.25
    reference = model_of(2, 0.25)
    reference.set_weights(new.get_weights())
    for model in (new, reference):
        go_on(model)
    for value, expected in zip(new.get_weights(), reference.get_weights()):
        np.testing.assert_array_equal(value, expected)
    # The same model continues, skipping nothing.
    again = model_of(4, 0.25)
    again.load_weights(path, skip_mismatch=True)
    assert again.optimizer.get_state().keys() == old.optimizer.get_state().keys()
    assert again.optimizer.completed_updates == old.optimizer.completed_updates


NEVER = {
    "Missing: completed_updates; Not known here: a": {"a": 1},
    "Not known here: Other.momentum.0": {"completed_updates": 3, "Other.momentum.0": np.ones(2)},
}


@pytest.mark.parametrize("message", NEVER)
def test_a_state_that_fits_no_variables_is_refused_at_once(message):
    """Before `build`."""
    optimizer = hosts.ours("Adam", accum_iters=LENGTH)
    with pytest.raises(accum.StateError, match=re.escape(message)):
        optimizer.set_state(NEVER[message])
    assert optimizer.completed_updates == 0
