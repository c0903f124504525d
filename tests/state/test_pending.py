"""A state that waits for its variables: every read, save, copy and change sees it."""

import copy
import itertools
import pickle
import re

import formats
import hosts
import numpy as np
import pytest
from cases import CASES
from formats import CLASSES, assert_same
from hosts import accum, keras
from training import LENGTH, MICRO, compiled, data, dense_model, fit, go_on

from keras_accum.state.names import is_of_window

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
legacy_only = pytest.mark.skipif(
    not hosts.IS_LEGACY, reason="only legacy optimizers are built by a restored checkpoint"
)
keras3_only = pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="only lists of Keras 3 have a learning rate"
)
eager_only = pytest.mark.skipif(
    hosts.IS_KERAS2, reason="on Keras 2 only a train step makes the optimizer's variables"
)

STOP = LENGTH + 2  # two micro-batches into the second window
LATER = 2 * LENGTH + 3
REMEDY = r"optimizer\.build\(model\.trainable_variables\)"
if hosts.IS_KERAS2:
    REMEDY = r"model\._make_train_function\(\)"


# -- models, and ways to copy them ---------------------------------------------------------------

EAGER = {} if hosts.IS_KERAS2 else {"run_eagerly": True}


def fresh(optimizer=None, **more):
    arguments = {"accum_iters": LENGTH, **CASES["adam"].arguments, **more}
    optimizer = optimizer or hosts.ours("Adam", **arguments)
    return compiled(dense_model(), optimizer, hosts.mean_squared_error(), **EAGER)


def load(path):
    """Load a model to run it as it ran before: XLA would round differently."""
    model = keras.models.load_model(str(path), custom_objects=CLASSES)
    if EAGER:
        model.run_eagerly = True
    return model


def like(source, optimizer=None):
    """Return a fresh model with the weights of `source`."""
    model = fresh(optimizer)
    model.set_weights(source.get_weights())
    return model


def set_state(source, folder):
    model = like(source)
    model.optimizer.set_state(source.optimizer.get_state())
    return model


def set_weights(source, folder):
    model = like(source)
    model.optimizer.set_weights(source.optimizer.get_weights())
    return model


def loaded_weights(source, folder):
    source.save_weights(folder / "waits.weights.h5")
    model = fresh()
    model.load_weights(folder / "waits.weights.h5")
    return model


def checkpoint(model):
    return hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def to_file(name):
    def act(model, folder):
        model.save(str(folder / name))
        return load(folder / name)

    return act


def unpickled(source, folder):
    return like(source, pickle.loads(pickle.dumps(source.optimizer)))


def to_copy(model, folder):
    return like(model, copy.deepcopy(model.optimizer))


def to_other(model, folder):
    other = accum.AdamAccumulate.from_optimizer(model.optimizer)
    model.compile(other, model.loss, **EAGER)
    return model


SAVED = {
    "h5": to_file("then.h5"),
    "pickle": unpickled,
    "other": to_other,
    "state": set_state,
}
if hosts.IS_LEGACY or hosts.IS_KERAS2:
    SAVED["weights"] = set_weights
if not hosts.IS_KERAS2:
    SAVED["keras"] = to_file("then.keras")
if hosts.IS_KERAS3:
    SAVED["weights_file"] = loaded_weights
    SAVED["copy"] = to_copy


def to_checkpoint(model, folder):
    path = checkpoint(model).save(str(folder / "then"))
    other = fresh()
    checkpoint(other).restore(path)
    return other


def everything(model):
    """A list has no names before `build`: read a copy that has its variables."""
    if hosts.IS_KERAS3 and not model.optimizer.built or "0" in model.optimizer.get_state():
        model = unpickled(model, None)
        hosts.build(model)
    return formats.everything(model)


@pytest.fixture
def source():
    return go_on(fresh(), 0, STOP)


# -- ways in which a state comes to wait -----------------------------------------------------------


def from_optimizer(source, folder):
    waiting = pickle.loads(pickle.dumps(source.optimizer))
    return like(source, accum.AdamAccumulate.from_optimizer(waiting))


def loaded(source, folder):
    """Load from a format for which the host doesn't build the optimizer by itself."""
    path = str(folder / ("waits.keras" if hosts.IS_TF_KERAS else "waits.h5"))
    source.save(path)
    return load(path)


def restored(source, folder):
    path = checkpoint(source).save(str(folder / "waits"))
    model = fresh()
    checkpoint(model).restore(path)
    return model


WAYS = [set_state, unpickled]
if hosts.IS_KERAS3:
    WAYS += [loaded]
elif hosts.IS_TF_KERAS:
    WAYS += [loaded, restored][: 1 + hosts.IS_LEGACY]
MORE_WAYS = [from_optimizer]
if not hosts.IS_NEW_STYLE:  # which has no get_weights
    MORE_WAYS += [loaded_weights if hosts.IS_KERAS3 else set_weights]
# With these the model is known, so the optimizer has been built.
BUILT = [loaded, restored] if hosts.IS_TF_KERAS else []

every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


# -- who sees the state ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS + MORE_WAYS, ids=lambda way: way.__name__)
def test_read(way, source, tmp_path):
    model = way(source, tmp_path)
    assert_same(everything(model), everything(source))
    optimizer = model.optimizer
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 2)
    assert int(hosts.array(optimizer.iterations)) == 1
    assert_same(everything(go_on(model, STOP)), everything(go_on(source, STOP)))


def set_accum_iters(model, folder):
    model.optimizer.accum_iters = 2
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
    path = checkpoint(go_on(fresh(), 0, LATER)).save(str(folder / "later"))
    checkpoint(model).restore(path)
    if not hosts.IS_LEGACY:  # other optimizers wait for `build`, with TensorFlow's values
        hosts.build(model)
    return model


def assign_to_variables(model, folder):
    variables = hosts.stock_variables(model.optimizer)
    slots = [v for v in variables if re.search("velocity|(^|/)v", v.name)]
    assert len(slots) == 4
    for slot in slots:
        hosts.assign(slot, hosts.array(slot) + 1)
    return model


def from_state_tree(model, folder):
    tree = model.get_state_tree(value_format="numpy_array")
    for variable in model.optimizer.variables:
        hosts.assign(variable, np.zeros_like(hosts.array(variable)))
    model.set_state_tree(tree)
    return model


def copied(model, folder):
    """The copy has the model's variables and continues to train them."""
    model.optimizer = copy.deepcopy(model.optimizer)
    return model


CHANGES = [set_accum_iters, apply_partial_window, newer_state]
NEED_VARIABLES = ["apply_partial_window"]
KEEP = dict(SAVED)
if not hosts.IS_KERAS2:
    CHANGES += [assign_to_variables]
if hosts.IS_KERAS3:
    KEEP["from_state_tree"] = from_state_tree
    NEED_VARIABLES += ["assign_to_variables", "from_state_tree", "h5"]  # a list needs them, too
if hosts.IS_KERAS2:
    NEED_VARIABLES += ["h5", "weights"]
if hosts.IS_TF_KERAS:
    CHANGES += [newer_checkpoint]
    KEEP["checkpoint"] = to_checkpoint
if hosts.IS_LEGACY:
    KEEP["copied"] = copied
CHANGES = {act.__name__: act for act in CHANGES}


@pytest.mark.parametrize("act", [*KEEP, *CHANGES])
@every_way
def test_before_the_first_step(way, act, source, tmp_path):
    """A waiting state is saved, copied and changed as any other, or the remedy is said."""
    model = way(source, tmp_path)
    if act in NEED_VARIABLES and way not in BUILT:
        with pytest.raises(ValueError, match=REMEDY):
            {**KEEP, **CHANGES}[act](model, tmp_path)
        assert_same(everything(model), everything(source))
        hosts.build(model)
    if act in CHANGES:
        model, source = (CHANGES[act](each, tmp_path) for each in (model, source))
        hosts.build(model)
    else:
        model = KEEP[act](model, tmp_path)
    assert_same(everything(model), everything(source))
    assert_same(everything(go_on(model, STOP)), everything(go_on(source, STOP)))


@legacy_only
def test_a_state_newer_than_the_checkpoint_wins(source, tmp_path):
    model = newer_state(restored(source, tmp_path), tmp_path)
    later = go_on(fresh(), 0, LATER)
    assert_same(everything(go_on(model, LATER)), everything(go_on(later, LATER)))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has state trees")
@pytest.mark.parametrize("source, target", [("fitted", "built"), ("built", "fitted")])
def test_state_trees(source, target):
    """Variables have the same paths whoever built the optimizer. Keras ignores unknown paths."""

    def made(how, micro_batches):
        model = compiled(dense_model(), hosts.ours("Adam", accum_iters=LENGTH, name="adam"))
        if how == "built":
            hosts.build(model)
            go_on(model, 0, micro_batches)
        else:
            x, y = (array[: micro_batches * MICRO] for array in data())
            fit(model, MICRO, arrays=(x, y), epochs=1)
        return model

    one, other = made(source, STOP), made(target, LENGTH + 1)
    other.set_state_tree(one.get_state_tree(value_format="numpy_array"))
    assert_same(everything(other), everything(one))


@eager_only
def test_a_file_without_names_has_the_order_of_a_built_optimizer(source):
    """The names of a state may come in any order, for example sorted."""
    model = fresh()
    optimizer = model.optimizer
    optimizer.set_state(dict(sorted(source.optimizer.get_state().items())))
    hosts.build(model)
    arrays = list(map(hosts.array, hosts.listed(source.optimizer)))
    for variable, array in itertools.zip_longest(hosts.listed(optimizer), arrays):
        np.testing.assert_array_equal(hosts.array(variable), array)


def test_what_is_set_while_a_state_waits_is_in_copies(source):
    optimizer = fresh().optimizer
    optimizer.set_state(source.optimizer.get_state())
    optimizer.learning_rate, optimizer.accum_iters = 0.5, 7
    again = pickle.loads(pickle.dumps(optimizer))
    state = again.get_state()
    assert (state["learning_rate"], state["accum_iters"]) == (0.5, 7)
    assert again.accum_iters == 7 and float(hosts.array(again.learning_rate)) == 0.5


@keras3_only
def test_a_list_that_waits_has_no_place_for_a_rate(source):
    optimizer = fresh().optimizer
    optimizer.set_weights([hosts.array(v) for v in source.optimizer.variables])
    optimizer.learning_rate = 0.5
    with pytest.raises(ValueError, match=REMEDY):
        optimizer.get_state()
    again = pickle.loads(pickle.dumps(optimizer))
    hosts.build_on(again, source.trainable_variables)
    assert again.get_state()["learning_rate"] == 0.5


@keras3_only
def test_from_optimizer_of_a_list(source):
    """The list has a learning rate, which a new argument replaces, and may lose its window."""
    source.optimizer.apply_partial_window()
    waiting, state = fresh(), source.optimizer.get_state()
    waiting.optimizer.set_weights([hosts.array(v) for v in source.optimizer.variables])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    changed = {**state, "accum_iters": np.asarray(7), "window_length": np.asarray(LENGTH)}
    rate = changed.pop("learning_rate")
    for given, rates in (
        ({}, {"learning_rate": rate}),
        ({"learning_rate": 0.5}, {"learning_rate": np.asarray(0.5)}),
        ({"learning_rate": schedule}, {}),
    ):
        again = accum.AdamAccumulate.from_optimizer(waiting.optimizer, accum_iters=7, **given)
        again.build(waiting.trainable_variables)
        found = again.get_state()
        assert_same(dict(sorted(found.items())), dict(sorted({**changed, **rates}.items())))
    without_window = accum.AdamAccumulate.from_optimizer(waiting.optimizer, accum_iters=1)
    with pytest.raises(accum.StateError, match=r"A list of \d+ arrays.*accum_iters=1"):
        without_window.build(waiting.trainable_variables)
    hosts.build(waiting)
    again = accum.AdamAccumulate.from_optimizer(waiting.optimizer, accum_iters=1)
    found, names = again.get_state(), ["state_format", *(n for n in state if not is_of_window(n))]
    assert_same(dict(sorted(found.items())), {name: state[name] for name in sorted(names)})


@pytest.mark.parametrize("accum_iters", [1, LENGTH])
def test_a_list_of_the_stock_optimizer(accum_iters):
    """The list has no window, whose sums would tell the shapes."""
    source = compiled(dense_model(), hosts.stock("Adam"))
    fit(source, MICRO, epochs=1)
    ours = fresh(hosts.ours("Adam", accum_iters=accum_iters))
    ours.optimizer.set_weights(list(map(hosts.array, hosts.listed(source.optimizer))))
    hosts.build(ours)
    found = ours.optimizer.get_state()
    expected = accum.AdamAccumulate.from_optimizer(source.optimizer).get_state()
    names = [name for name in expected if name.startswith("Adam.")]
    assert found["completed_updates"] > 0 and len(names) == 8
    assert_same({n: found[n] for n in names}, {n: expected[n] for n in names})


@eager_only
@pytest.mark.skipif(hosts.IS_TF_KERAS, reason="the model's variables are known")
def test_a_list_for_other_variables(source):
    """`build` says so, and the list is not lost."""
    model = fresh()
    model.optimizer.set_weights(list(map(hosts.array, hosts.listed(source.optimizer))))
    with pytest.raises(accum.StateError, match="is not a state of|Of another shape"):
        model.optimizer.build(model.trainable_variables[::-1])
    other = fresh()
    other.set_weights(source.get_weights())
    other.optimizer.set_state(model.optimizer.get_state())
    assert_same(everything(go_on(other, STOP)), everything(go_on(source, STOP)))


# -- TensorFlow's checkpoints in the middle of a window ----------------------------------------

FITTED = {"epochs": 2, "initial_epoch": 1}


@legacy_only
@pytest.mark.parametrize("position", [1, LENGTH - 1])
def test_python_gate_after_a_checkpoint(position, tmp_path):
    source = go_on(fresh(), 0, LENGTH + position)
    model = restored(source, tmp_path)
    for some, callbacks in ((model, [accum.PythonGate()]), (source, [])):
        some.compile(some.optimizer, some.loss)
        fit(some, MICRO, callbacks=callbacks, **FITTED)
    assert_same(everything(model), everything(source))


@legacy_only
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
    with pytest.raises(accum.StateError, match=REMEDY):
        other.get_state()
    with pytest.raises(accum.StateError, match=REMEDY):
        pickle.dumps(other)
    other.build(others)
    other.apply_partial_window()
    optimizer.apply_partial_window()
    assert_same(other.get_state(), optimizer.get_state())
