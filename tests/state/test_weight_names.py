"""The names of a state's weights: a state of other weights is refused, or continues by name."""

import hosts
import numpy as np
import pytest
from cases import quick_once_on_keras3
from formats import CLASSES
from hosts import accum, keras
from training import LENGTH, compiled, go_on

pytestmark = quick_once_on_keras3

StateError = accum.StateError
STOP = LENGTH + 2  # two micro-batches into the second window
BY_NAME = r"`set_state\(state, by_name=True\)`"


def model_of(optimizer=None, names=("a", "b", "head"), frozen=("b",)):
    """Layers of the same shape, of which only some are trained."""
    layers = [keras.layers.Dense(3, **({"name": n} if n else {})) for n in names[:-1]]
    layers.append(keras.layers.Dense(2, name=names[-1]))
    model = hosts.sequential((3,), layers)
    for layer, name in zip(layers, "a b head".split()):
        layer.trainable = name not in frozen
    optimizer = optimizer or hosts.ours("Adam", accum_iters=LENGTH)
    return compiled(model, optimizer, hosts.mean_squared_error())


def freeze_another(model):
    """Freeze `a` and free `b`: the trained weights are as many, and of the same shapes."""
    model.layers[-3].trainable, model.layers[-2].trainable = False, True
    values = model.get_weights()
    compiled(model, hosts.ours("Adam", accum_iters=LENGTH), hosts.mean_squared_error())
    model.set_weights(values)
    return model.optimizer


def arrays(state, index, slots=("Adam.momentum", "Adam.velocity", "accumulator")):
    return [state[f"{slot}.{index}"] for slot in slots]


@pytest.mark.parametrize("is_built", [True, False])
def test_another_layer_is_frozen_between_states(is_built):
    """The state is refused, and by name, the layers that go on keep their moments and sums."""
    model = go_on(model_of(), 0, STOP)
    state, names = model.optimizer.get_state(), ["kernel", "bias"] * 2
    optimizer = freeze_another(model)
    if is_built:
        hosts.build(model)
    with pytest.raises(StateError, match=rf"a/kernel \(\S*b/kernel here\), .*{BY_NAME}"):
        optimizer.set_state(state)
        hosts.build(model)
    if not is_built:
        optimizer = freeze_another(model)
        with pytest.raises(ValueError, match=r"`set_state\(by_name=True\)` before"):
            optimizer.set_state(state, by_name=True)
        hosts.build(model)
    optimizer.set_state(state, by_name=True)
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 2)
    found = optimizer.get_state()
    owners = [name.split("/")[-2:] for name in bytes(found["weight_names"]).decode().split("\n")]
    assert [list(pair) for pair in zip(["b", "b", "head", "head"], names)] == owners
    assert found["missing_gradients"].tolist() == [0 if o[0] == "head" else 2 for o in owners] + [0]
    for index, (layer, _) in enumerate(owners):
        for value, old in zip(arrays(found, index), arrays(state, index)):
            np.testing.assert_array_equal(value, old if layer == "head" else np.zeros_like(old))
    before = model.get_weights()
    optimizer.apply_partial_window()  # in which `b` has had no gradient
    moved = [(new != old).any() for new, old in zip(model.get_weights(), before)]
    assert sum(moved) == 2
    go_on(model, STOP, STOP + LENGTH)
    assert optimizer.completed_updates == 3


@pytest.mark.skipif(hosts.IS_KERAS2, reason="where each model of a session has other names")
def test_more_or_fewer_layers_are_trained():
    state = go_on(model_of(frozen=()), 0, STOP).optimizer.get_state()
    model = model_of()
    hosts.build(model)
    with pytest.raises(StateError, match=rf"6 trainable variables, and .* has 4.*{BY_NAME}"):
        model.optimizer.set_state(state)
    model.optimizer.set_state(state, by_name=True)
    for index, place in enumerate([0, 1, 4, 5]):
        for value, old in zip(arrays(model.optimizer.get_state(), index), arrays(state, place)):
            np.testing.assert_array_equal(value, old)
    more = model_of(frozen=())
    hosts.build(more)
    more.optimizer.set_state(model.optimizer.get_state(), by_name=True)
    again = more.optimizer.get_state()
    for index, place in enumerate([0, 1, None, None, 2, 3]):
        for value, old in zip(arrays(again, index), arrays(state, index)):
            np.testing.assert_array_equal(value, np.zeros_like(old) if place is None else old)


def test_new_weights_begin_as_in_a_new_optimizer():
    """Adagrad's accumulators don't begin with zeros."""
    if hosts.IS_KERAS2:
        pytest.skip("Keras 2 has no Adagrad here")
    make = lambda: hosts.ours("Adagrad", accum_iters=2, initial_accumulator_value=0.5)  # noqa: E731
    state = go_on(model_of(make()), 0, 2).optimizer.get_state()
    model = model_of(make(), frozen=("a",))
    hosts.build(model)
    model.optimizer.set_state(state, by_name=True)
    found = model.optimizer.get_state()
    np.testing.assert_array_equal(found["Adagrad.accumulator.0"], np.full((3, 3), 0.5))
    np.testing.assert_array_equal(found["Adagrad.accumulator.2"], state["Adagrad.accumulator.2"])
    assert (found["Adagrad.accumulator.2"] != 0.5).any()


@pytest.mark.parametrize("names", [(None, None, "head"), ("a", "b", "head")])
def test_a_model_that_is_built_again(names):
    """Keras numbers layers without a name, and the state still fits."""
    source, model = (model_of(names=names) for _ in range(2))
    state = go_on(source, 0, STOP).optimizer.get_state()
    hosts.build(model)
    model.optimizer.set_state(state)
    found = model.optimizer.get_state()
    assert set(found) == set(state)
    for name in set(state) - {"weight_names"}:
        np.testing.assert_array_equal(found[name], state[name])


def test_numbered_layers_are_told_apart_where_one_is_frozen():
    """`dense` and `dense_1` of one model aren't taken for one layer of two models."""
    model = go_on(model_of(names=(None, None, "head")), 0, STOP)
    state = model.optimizer.get_state()
    optimizer = freeze_another(model)
    hosts.build(model)
    with pytest.raises(StateError, match=BY_NAME):
        optimizer.set_state(state)
    del state["weight_names"]  # as in a state from before version 1.2, which loads as then
    optimizer.set_state(state)
    assert optimizer.window_position == 2


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="files that hold a state by names")
def test_a_file_of_other_layers(tmp_path):
    """As for another number of layers, the optimizer starts afresh, with a warning."""
    path = str(tmp_path / "m.weights.h5")
    source = go_on(model_of(), 0, STOP)
    source.save_weights(path)
    same, other, later = model_of(), model_of(frozen=("a",)), model_of(frozen=("a",))
    hosts.build(later)
    same.load_weights(path)
    assert same.optimizer.window_position == 2
    for model in (other, later):
        says = r"(?s)Skipping.*other trainable variables: \S*a/kernel"
        with pytest.warns(UserWarning, match=says):
            model.load_weights(path)
        assert (model.optimizer.completed_updates, model.optimizer.window_position) == (0, 0)
        for value, expected in zip(model.get_weights(), source.get_weights()):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.skipif(hosts.IS_KERAS2, reason="its files hold no names")
@pytest.mark.skipif(hosts.IS_NEW_STYLE, reason="the same files as in the legacy style")
def test_a_file_of_a_nested_model(tmp_path):
    """Loaded, it has other names: Keras leaves the Sequential out of them."""
    layers = keras.layers
    x = layers.Input((3,))
    inner = keras.Sequential([layers.Dense(3), layers.Dense(3)])
    model = keras.Model(x, layers.Dense(2, name="head")(inner(layers.Dense(3)(x))))
    optimizer = hosts.ours("Adam", accum_iters=LENGTH)
    model = go_on(compiled(model, optimizer, hosts.mean_squared_error()), 0, STOP)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", custom_objects=CLASSES)
    state, found = optimizer.get_state(), loaded.optimizer.get_state()
    for name in set(state) - {"weight_names"}:
        np.testing.assert_array_equal(found[name], state[name])


@pytest.mark.parametrize("damage", ["not text", "twice", "others", "none", "list"])
def test_names_that_tell_nothing(damage):
    model = model_of()
    hosts.build(model)
    state = model.optimizer.get_state()
    if damage == "not text":
        state["weight_names"] = np.asarray([255, 254])
        with pytest.raises(StateError, match="`weight_names` of this state isn't text"):
            model.optimizer.set_state(state)
        return
    says = {"twice": "several weights are called same", "others": r"is in both.*has w;.*a/kernel"}
    if damage in says:
        name = b"w" if damage == "others" else b"same\nsame"
        state["weight_names"] = np.frombuffer(name, "uint8")
    elif damage == "none":
        del state["weight_names"]
    else:
        state = list(map(hosts.array, hosts.listed(model.optimizer)))
    with pytest.raises(StateError, match=says.get(damage, "this state has no names")):
        model.optimizer.set_state(state, by_name=True)
