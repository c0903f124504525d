"""Names of weights in nested layers: outer layers tell them apart, in the optimizer's own model."""

import contextlib
import itertools

import hosts
import numpy as np
import pytest
import training
from cases import quick_first, quick_once_on_keras3, third_by_torch
from hosts import accum, keras
from training import LENGTH

pytestmark = quick_once_on_keras3

StateError = accum.StateError
layers = keras.layers
STOP = LENGTH + 2  # two micro-batches into the second window
BY_NAME = r"set_state\(.*by_name=True\)"


class Block(layers.Layer):
    """A layer around a Dense whose name Keras chooses."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.inner = layers.Dense(3)

    def build(self, shape):
        self.inner.build(shape)
        super().build(shape)

    def call(self, inputs):
        return self.inner(inputs)

    def compute_output_shape(self, shape):
        return shape


class Attention(layers.Layer):
    """A layer around an attention to its own inputs."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.inner = layers.MultiHeadAttention(1, 3)

    def call(self, inputs):
        return self.inner(inputs, inputs)


def functional(name):
    x = layers.Input((4, 3))
    return keras.models.Model(x, layers.Dense(3, name="proj")(x), name=name)


# Layers of one kind with weights of the same shapes.
KINDS = {
    "dense": lambda name: layers.Dense(3, name=name),
    "lstm": lambda name: layers.LSTM(3, return_sequences=True, name=name),
    "sequential": lambda name: keras.models.Sequential(
        [layers.Dense(3), layers.Dense(3)], name=name
    ),
    "functional": functional,
    "block": lambda name: Block(name=name),
    "attention": lambda name: Attention(name=name),
}
if hosts.IS_KERAS2:  # whose layers can't be nested in one's own
    del KINDS["block"], KINDS["attention"]


def make(kind, has_head, frozen):
    """An encoder and a decoder, one of them frozen."""
    x = y = layers.Input((4, 3))
    for name in ("encoder", "decoder"):
        y = KINDS[kind](name)(y)
    model = keras.models.Model(x, layers.Dense(2, name="head")(y) if has_head else y)
    return freeze(model, frozen)


def freeze(model, name):
    """Freeze one of both layers, and give the model a new optimizer."""
    for each in ("encoder", "decoder"):
        model.get_layer(each).trainable = each != name
    return compiled(model)


def compiled(model, optimizer=None):
    optimizer = optimizer or hosts.ours("Adam", accum_iters=LENGTH, reduction="mean")
    return training.compiled(model, optimizer, hosts.mean_squared_error())


def train(model, steps=STOP):
    """Train with random numbers."""
    random = np.random.default_rng(3)
    for _ in range(steps):
        shapes = [(2, *shape[1:]) for shape in [model.input_shape, *_list(model.output_shape)]]
        x, *y = (random.normal(size=shape).astype("float32") for shape in shapes)
        model.train_on_batch(x, y if len(y) > 1 else y[0])
    return model


def _list(shapes):
    return shapes if isinstance(shapes, list) else [shapes]


def names_of(state):
    return bytes(state["weight_names"]).decode().split("\n")


def assert_continues(found, state, places):
    """Each weight has the slots and the sum of a place in the state, or zeros."""
    assert len(names_of(found)) == len(places)
    for index, place in enumerate(places):
        for slot in ("Adam.momentum", "Adam.velocity", "accumulator"):
            value = found[f"{slot}.{index}"]
            old = np.zeros_like(value) if place is None else state[f"{slot}.{place}"]
            np.testing.assert_array_equal(value, old)


QUICK = [("functional", True, False), ("lstm", False, True)]
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.thorough)
    for case in itertools.product(KINDS, [True, False], [True, False])
]


@third_by_torch
@pytest.mark.parametrize("kind, has_head, is_built_again", CASES)
def test_another_layer_of_its_kind_is_frozen(kind, has_head, is_built_again, tmp_path):
    """The state is refused, and by name, a common head continues."""
    model = train(make(kind, has_head, "decoder"))
    state, path = model.optimizer.get_state(), str(tmp_path / "m.weights.h5")
    model.save_weights(path)
    again = make(kind, has_head, "decoder")
    hosts.build(again)
    again.optimizer.set_state(state)
    assert_continues(again.optimizer.get_state(), state, range(len(names_of(state))))

    model = make(kind, has_head, "encoder") if is_built_again else freeze(model, "encoder")
    hosts.build(model)
    with pytest.raises(StateError, match=rf"encoder.*\(\S*decoder.* here\).*{BY_NAME}"):
        model.optimizer.set_state(state)
    if hosts.IS_KERAS3:
        with pytest.warns(UserWarning, match=r"(?s)Skipping.*encoder\S* \(\S*decoder"):
            model.load_weights(path)
        assert model.optimizer.completed_updates == 0
    names = names_of(model.optimizer.get_state())
    if has_head and not (hosts.IS_KERAS2 and is_built_again):  # whose names are then others
        model.optimizer.set_state(state, by_name=True)
        places = [None] * (len(names) - 2) + [len(names) - 2, len(names) - 1]
        assert_continues(model.optimizer.get_state(), state, places)
    else:
        with pytest.raises(StateError, match="no weight is in both"):
            model.optimizer.set_state(state, by_name=True)


@quick_first("kind", ["functional", "dense"])
def test_a_copy_of_the_optimizer_after_another_layer_is_frozen(kind):
    """It has the other layer's state, so the first step is refused."""
    model = train(make(kind, False, "decoder"))
    copied = type(model.optimizer).from_optimizer(model.optimizer)
    model.get_layer("encoder").trainable, model.get_layer("decoder").trainable = False, True
    compiled(model, copied)
    with pytest.raises((StateError, ValueError), match=BY_NAME):
        train(model, 1)


def test_the_same_weights_in_another_order():
    """Each has its own slots, whatever number its name ends with."""
    x, heads = layers.Input((3,)), [layers.Dense(2, name=name) for name in ("head", "head_2")]
    outputs = [head(x) for head in heads]
    state = train(compiled(keras.models.Model(x, outputs))).optimizer.get_state()
    model = compiled(keras.models.Model(x, outputs[::-1]))
    hosts.build(model)
    model.optimizer.set_state(state)
    found = model.optimizer.get_state()
    assert names_of(found) == names_of(state)[2:] + names_of(state)[:2]
    assert_continues(found, state, [2, 3, 0, 1])
    train(model, 1)


def test_a_layer_in_a_new_model():
    """It is the same weight at another place, and the layer that follows is another one."""
    x, (first, second, third) = layers.Input((3,)), (layers.Dense(3, name=f"d_{n}") for n in "123")
    state = train(compiled(keras.models.Model(x, second(first(x))))).optimizer.get_state()
    model = compiled(keras.models.Model(x, third(second(x))))
    hosts.build(model)
    with pytest.raises(StateError, match=rf"d_2/kernel \(\S*d_3/kernel here\).*{BY_NAME}"):
        model.optimizer.set_state(state)
    model.optimizer.set_state(state, by_name=True)
    assert_continues(model.optimizer.get_state(), state, [2, 3, None, None])


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="files that hold a state by names")
def test_a_file_goes_by_order(tmp_path):
    """As Keras loads its weights: in another process, layers have other numbers."""

    def build(*names):
        x = y = layers.Input((3,))
        for name in names:
            y = layers.Dense(3, name=name)(y)
        return compiled(keras.models.Model(x, y))

    source, model, path = build("d_1", "d_2"), build("d_2", "d_3"), str(tmp_path / "m.weights.h5")
    train(source).save_weights(path)
    model.load_weights(path)
    state = source.optimizer.get_state()
    assert_continues(model.optimizer.get_state(), state, range(4))
    with pytest.raises(StateError, match=BY_NAME):
        model.optimizer.set_state(state)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="elsewhere, only `compile` tells an optimizer")
def test_an_optimizer_in_an_attribute():
    """It knows the model that has it, as in a GAN."""
    x = layers.Input((4, 3))
    model = keras.models.Model(x, functional("decoder")(functional("encoder")(x)))
    states = []
    for name in ("encoder", "decoder"):
        model.own = hosts.ours("Adam", accum_iters=2, reduction="mean")
        variables = model.get_layer(name).trainable_variables
        model.own.build(variables)
        model.own.apply([keras.ops.ones(v.shape) for v in variables])
        states.append(model.own.get_state())
        assert names_of(states[-1]) == [f"{name}/proj/kernel", f"{name}/proj/bias"]
    with pytest.raises(StateError, match=r"encoder/proj/kernel \(decoder/proj/kernel here\)"):
        model.own.set_state(states[0])


def test_a_frozen_model_of_the_same_function():
    """A teacher isn't a part of the student's model."""

    def build():
        x = layers.Input((3,))
        return compiled(keras.models.Model(x, layers.Dense(2)(layers.Dense(3)(x))))

    teacher, student = train(build()), build()
    state, teacher.trainable = teacher.optimizer.get_state(), False
    hosts.build(student)
    student.optimizer.set_state(state)
    assert_continues(student.optimizer.get_state(), state, range(4))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="files that hold a state by names")
@pytest.mark.parametrize("frozen", ["decoder", "encoder"])
@pytest.mark.parametrize("is_built", [False, True])
def test_a_file_in_mixed_precision(frozen, is_built, tmp_path):
    """In a LossScaleOptimizer, ours starts afresh if it is alone, and else has the whole state."""

    def make_scaled(name):
        optimizer = hosts.loss_scaled(compiled_optimizer(), initial_scale=2.0**5)
        model = make("dense", True, name)
        return compiled(model, optimizer)

    def compiled_optimizer():
        return hosts.ours("Adam", accum_iters=LENGTH, reduction="mean")

    source, path = train(make_scaled("decoder")), str(tmp_path / "m.weights.h5")
    source.optimizer.dynamic_scale.assign(2.0**4)
    source.save_weights(path)
    model = make_scaled(frozen)
    if is_built:
        hosts.build(model)
    says = "Skipping" if not is_built or frozen == "encoder" else None
    with pytest.warns(UserWarning, match=says) if says else contextlib.nullcontext():
        model.load_weights(path)
    state = source.optimizer.inner_optimizer.get_state()
    places = range(4) if frozen == "decoder" else [None] * 4
    assert_continues(model.optimizer.inner_optimizer.get_state(), state, places)
    assert float(model.optimizer.dynamic_scale) == (2.0**4 if is_built else 2.0**5)
    assert model.optimizer.inner_optimizer.completed_updates == (frozen == "decoder")
    train(model, 1)
    assert len(model.optimizer.variables) == len(source.optimizer.variables)
