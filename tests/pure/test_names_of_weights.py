"""Whether the names in a state and those of an optimizer are of the same weights."""

import numpy as np
import pytest

from keras_accum.engine.state import names
from keras_accum.engine.state.checks import StateError
from keras_accum.engine.window import MISSING


def of_layers(text):
    """`a b` has the kernels and biases of two layers."""
    return [f"{layer}/{weight}" for layer in text.split() for weight in ("kernel", "bias")]


# Layers in the state, here, and frozen here. The last ones are the layers that are others.
SAME = [
    ("a b head", "a b head", "", ""),
    ("dense dense_1", "dense_2 dense_3", "", ""),  # the model was built again
    ("dense dense_1 head", "dense_2 dense_3 head", "", ""),  # and one of its layers has a name
    ("dense_1 dense_2", "dense dense_1", "", ""),  # in a process without another model before
    ("m/dense m/block/dense_1", "m_1/dense_2 m_1/block/dense_3", "", ""),
    ("conv2d dense head", "conv2d dense_7 head", "", ""),
    ("a b", "c d", "", ""),  # nothing is known of renamed layers
    ("dense head", "dense_1 head", "other", ""),
    ("sequential/dense_1 head", "dense_1 head", "", ""),  # as in a file of a nested Sequential
    ("model/a model/b", "a b", "model/a", ""),  # the frozen one is in another model
    ("block/dense_3 dense_2", "block_1/dense_4 dense_2", "", ""),  # of a layer that makes layers
]
OTHERS = [
    ("a head", "b head", "", "a"),
    ("a head", "b head", "a", "a"),
    ("a b head", "b c head", "", "a b"),
    ("a b", "b a", "", "a b"),
    ("dense head", "dense_1 head", "dense", "dense"),
    ("dense", "dense_1", "dense", "dense"),
    ("m/a m/head", "m/b m/head", "", "m/a"),
]


@pytest.mark.parametrize("state, here, frozen, others", SAME + OTHERS)
def test_names_of_the_same_weights(state, here, frozen, others):
    found = names.find_others(of_layers(state), of_layers(here), set(of_layers(frozen)))
    assert found == of_layers(others)


def test_names_without_a_layer():
    assert names.find_others(["w", "b"], ["b", "w"], set()) == ["w", "b"]
    assert names.find_others(["variable", "variable_1"], ["variable_1", "variable_2"], set()) == []
    assert names.find_others(["block/kernel", "w"], ["kernel", "w"], set()) == []
    # the weight of a layer may be called otherwise on another Keras
    old, new = (["d/depthwise_kernel", "head/bias"], ["d/kernel", "head/bias"])
    assert names.find_others(old, new, set()) == []


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
