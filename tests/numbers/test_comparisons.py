"""What a failing comparison reports: the variable, the difference, the tolerance, the update."""

import hosts
import numpy as np
import pytest
from cases import keras2_has_no, thorough
from training import BIG, LENGTH, MICRO, UPDATES, assert_equal, assert_same_training, train


@thorough
@keras2_has_no("schedules")
def test_a_training_that_differs_since_its_fourth_update():
    rates = [2**-3] * (UPDATES + 1)
    other = [*rates[:3], 2**-4, *rates[4:]]
    expected = train(hosts.stock("SGD", learning_rate=hosts.EachUpdate(rates)), BIG)
    ours = hosts.ours("SGD", learning_rate=hosts.EachUpdate(other), accum_iters=LENGTH)
    with pytest.raises(AssertionError) as failure:
        assert_same_training(train(ours, MICRO), expected)
    end, first = str(failure.value).split("The first update that differs is number 4:")
    name = "kernel"
    for said in (end, first):
        assert name in said and " differs by 0.0" in said and "of 12 numbers differ" in said
    assert "At the end of the training" in end
    assert f"tolerance {hosts.TOLERANCE['atol']:.2g} + {hosts.TOLERANCE['rtol']:.2g}" in end


def test_an_array_that_differs():
    expected = {"same": np.ones(3), "w": np.array([[1.0, np.nan], [-2.0, np.inf]]), "iterations": 7}
    actual = {**expected, "w": np.array([[1.5, np.nan], [-2.25, np.inf]]), "more": 1}
    assert_equal(expected, expected, rtol=0, atol=0)
    with pytest.raises(AssertionError) as failure:
        assert_equal(actual, expected, rtol=0, atol=0.125)
    assert str(failure.value) == (
        "Not equal after update 7, tolerance 0.12 + 0 * |expected|:\n"
        "  w differs by 0.5: got 1.5, expected 1, at (0, 0); 2 of 4 numbers differ"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_becomes_nan_or_infinite(value):
    with pytest.raises(AssertionError, match="w differs by inf: .*, expected 2, at"):
        assert_equal({"w": np.array([1.0, value])}, {"w": np.array([1.0, 2.0])})


def test_another_shape():
    with pytest.raises(AssertionError, match=r"w has shape \(1,\), expected \(\)"):
        assert_equal({"w": np.ones(1)}, {"w": 1.0})


def test_an_array_that_is_missing():
    with pytest.raises(AssertionError, match="'v'"):
        assert_equal({"w": 1.0}, {"w": 1.0, "v": 2.0})
