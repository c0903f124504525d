"""Whether the names in a state and those of an optimizer are of the same weights."""

import numpy as np
import pytest

from keras_accum.engine.models import Weights
from keras_accum.engine.state import names
from keras_accum.engine.state.checks import StateError
from keras_accum.engine.window import MISSING


def of_layers(text):
    """`a b` has the kernels and biases of two layers."""
    return [f"{layer}/{weight}" for layer in text.split() for weight in ("kernel", "bias")]


# Layers in the state, here, and of the model's other weights. The last ones are those that differ.
SAME = [
    ("a b head", "a b head", "", ""),
    ("a b head", "a b head", "c", ""),
    ("dense dense_1", "dense_2 dense_3", "", ""),  # the model was built again
    ("dense dense_1 head", "dense_2 dense_3 head", "", ""),  # and one of its layers has a name
    ("dense head", "dense_2 head", "dense_3", ""),  # and one doesn't train
    ("m/dense m/block/dense_1", "m_1/dense_2 m_1/block/dense_3", "", ""),
    ("conv2d dense head", "conv2d dense_7 head", "", ""),
    ("a b", "c d", "", ""),  # nothing is known of renamed layers
    ("a b", "c d", "e", ""),
    ("dense head", "dense_1 head", "other", ""),
    ("sequential/dense_1 head", "dense_1 head", "", ""),  # as in a file of a nested Sequential
    ("model/a model/b", "a b", "c", ""),
    ("block/dense_3 dense_2", "block_1/dense_4 dense_2", "", ""),  # of a layer that makes layers
    ("proj proj head", "encoder/proj decoder/proj head", "", ""),  # from before version 2.0
    ("encoder/proj decoder/proj head", "proj proj head", "", ""),  # nothing knows the model
    ("x/proj x/proj", "x/proj x/proj", "x/proj", ""),  # names tell nothing
]
OTHERS = [
    ("a head", "b head", "", "a"),
    ("a head", "b head", "a", "a"),
    ("a b head", "b c head", "", "a b"),
    ("dense head", "dense_1 head", "dense", "dense"),
    ("dense", "dense_1", "dense", "dense"),
    ("m/a m/head", "m/b m/head", "", "m/a"),
    # The outer layers tell which one it is, whether or not they share a head.
    ("encoder/cell head", "decoder/cell head", "", "encoder/cell"),
    ("encoder/cell", "decoder/cell", "encoder/cell", "encoder/cell"),
    ("encoder/dense_1", "decoder/dense_2", "encoder/dense_3", "encoder/dense_1"),
    # A name that is here means the weight that has it, or one of those.
    ("dense_1 dense_2", "dense dense_1", "", "dense_1"),
    ("dense dense_1", "dense_1 dense_2", "", "dense_1"),
    ("proj head", "decoder/proj head", "encoder/proj", "proj"),
]


@pytest.mark.parametrize("state, here, rest, others", SAME + OTHERS)
def test_names_of_the_same_weights(state, here, rest, others):
    found = match(of_layers(state), of_layers(here), of_layers(rest))
    assert found == (list(range(len(of_layers(here)))), of_layers(others))


def match(state, own, others=(), **more):
    """Return the places of the weights here, and names of others."""
    places, wrong = names.pair(state, Weights(own, list(others)), **more)
    return places, [state[place] for place in wrong]


@pytest.mark.parametrize("state, here", [("a b head", "head b a"), ("head head_2", "head_2 head")])
def test_the_same_weights_in_another_order(state, here):
    state, here = of_layers(state), of_layers(here)
    assert match(state, here, ["other/kernel"]) == (list(map(state.index, here)), [])
    assert match([f"model/{name}" for name in state], here) == (list(map(state.index, here)), [])


BY_ORDER = [
    ("dense_1 dense_2", "dense dense_1", "", ""),  # in a process without another model before
    ("head head_2", "head_2 head", "", ""),
    ("dense_1 dense_2 head", "dense dense_1 head", "dense_2", "dense_2"),
    ("a b head", "b c head", "", "a b"),
    ("a b", "b a", "", "a b"),
]


@pytest.mark.parametrize("state, here, rest, others", SAME + BY_ORDER)
def test_names_in_a_file(state, here, rest, others):
    """Keras loads the weights' values by order, whatever number a layer has."""
    found = match(of_layers(state), of_layers(here), of_layers(rest), by_order=True)
    assert found == (list(range(len(of_layers(here)))), of_layers(others))


def test_names_without_a_layer():
    assert match(["w", "b"], ["b", "w"]) == ([1, 0], [])
    assert match(["variable", "variable_1"], ["variable_2", "variable_3"]) == ([0, 1], [])
    assert match(["block/kernel", "w"], ["kernel", "w"]) == ([0, 1], [])
    # the weight of a layer may be called otherwise on another Keras
    old, new = (["d/depthwise_kernel", "head/bias"], ["d/kernel", "head/bias"])
    assert match(old, new) == ([0, 1], [])


def test_some_weights_by_name():
    here = Weights(["a/kernel", "c/kernel", "model/d/kernel"], ["b/kernel"])
    state = ["d/kernel", "b/kernel", "a/kernel", "e/kernel"]
    assert names.pair_by_name(state, here) == [2, None, 0]
    for wrong, says in {
        "a/kernel a/kernel": "several weights are called a/kernel",
        "m/a/kernel a/kernel": "several weights are called a/kernel",
        "b/kernel e/kernel": "no weight is in both",
    }.items():
        with pytest.raises(StateError, match=says):
            names.pair_by_name(wrong.split(), here)
    towers = Weights(["decoder/proj/kernel", "head/kernel"], ["encoder/proj/kernel"])
    with pytest.raises(StateError, match="several weights are called proj/kernel"):
        names.pair_by_name(["proj/kernel", "head/kernel"], towers)


def test_they_are_text_in_numbers():
    array = names.encode(["a/kernel", "\u00e9/bias"])
    for each in (array, array.astype("int64"), array.astype("float64")):
        rest, found = names.take({names.NAMES: each, "x": 1})
        assert (rest, found) == ({"x": 1}, ["a/kernel", "\u00e9/bias"])
    for nothing in ({}, {names.NAMES: np.zeros(5)}):  # from before 1.2, and after a reset
        assert names.take(nothing) == ({}, None)
    for wrong in (np.array([255]), np.array(["a"]), np.array(None)):
        with pytest.raises(StateError, match="isn't text in UTF-8"):
            names.take({names.NAMES: wrong})


@pytest.mark.parametrize("position", [0, 2])
def test_a_state_in_another_order(position):
    """The second weight continues as the first one, and the other one begins."""
    state = {"completed_updates": 5, "window_position": np.asarray(position)}
    state.update({f"{s}.{i}": np.full(2, 10 * i + 1) for s in ("m", "accumulator") for i in (0, 1)})
    own = {f"{slot}.{i}": (lambda: np.full(2, 7)) for slot in ("m", "accumulator") for i in (0, 1)}
    found = names.rearrange({**state, MISSING: np.array([0, 1, 0])}, [1, None], own)
    assert found["completed_updates"] == 5
    values = {name: found[name].tolist() for name in own}
    expected = {"m.0": [11, 11], "m.1": [7, 7], "accumulator.0": [11, 11], "accumulator.1": [0, 0]}
    assert values == expected
    assert found[MISSING].tolist() == ([1, 2, 0] if position else [0, 1, 0])
    if position:
        assert names.rearrange(state, [1, None], own)[MISSING].tolist() == [0, 2, 0]
