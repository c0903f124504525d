"""A schedule of windows is a function of updates, checked when it is made."""

import numpy as np
import pytest

from keras_accum import schedule
from keras_accum.schedule import AccumulationSchedule

LENGTHS = {0: 2, 3: 1, 4: 5, 9: 3}


def test_a_tensor_has_the_length_of_a_number():
    found = AccumulationSchedule(LENGTHS)
    updates = np.arange(12)
    assert found.in_step(np, updates).tolist() == [found(n) for n in updates]
    assert [found(n) for n in updates] == [2, 2, 2, 1, 5, 5, 5, 5, 5, 3, 3, 3]


def test_micro_batches_in_adds_up_the_lengths():
    found = AccumulationSchedule(LENGTHS)
    sums = np.cumsum([0, *(found(n) for n in range(20))])
    assert [found.micro_batches_in(n) for n in range(21)] == list(sums)
    np.testing.assert_array_equal(found.micro_batches_in(np.arange(21, dtype="int32")), sums)
    assert found.updates_in(found.micro_batches_in(17)) == 17


def test_updates_in_counts_windows_that_are_complete():
    found = AccumulationSchedule(LENGTHS)
    ends = np.cumsum([found(n) for n in range(20)])
    for micro_batches in range(50):
        assert found.updates_in(micro_batches) == (ends <= micro_batches).sum()


def test_a_config_makes_an_equal_schedule():
    found = AccumulationSchedule(LENGTHS)
    other = AccumulationSchedule.from_config(found.get_config())
    assert other == found == AccumulationSchedule(list(LENGTHS.items())[::-1])
    assert hash(other) == hash(found)
    assert repr(other) == "AccumulationSchedule({0: 2, 3: 1, 4: 5, 9: 3})"
    assert found != AccumulationSchedule({0: 2})


@pytest.mark.parametrize(
    "lengths, error, said",
    [
        (5, TypeError, "`lengths` must be a dictionary"),
        ({}, ValueError, "must have the key 0"),
        ({1: 2}, ValueError, "must have the key 0"),
        ({0: 0}, ValueError, "values of `lengths`.*Received: 0"),
        ({0: 1.5}, ValueError, "values of `lengths`.*Received: 1.5"),
        ({0: True}, TypeError, "values of `lengths`.*Received: True"),
        ({0: 2**31}, ValueError, "values of `lengths`"),
        ({0: 1, -1: 2}, ValueError, "keys of `lengths`.*Received: -1"),
        ({0: 1, 2.5: 2}, ValueError, "keys of `lengths`.*Received: 2.5"),
        ({0: 1, "9": 2}, TypeError, "keys of `lengths`.*Received: '9'"),
        ({False: 1}, TypeError, "keys of `lengths`.*Received: False"),
    ],
)
def test_a_schedule_is_refused_when_it_is_made(lengths, error, said):
    with pytest.raises(error, match=said):
        AccumulationSchedule(lengths)


@pytest.mark.parametrize("value", [np.int32(3), np.array(3), 3])
def test_a_function_may_return_an_integer_of_any_kind(value):
    assert schedule.length_at(lambda updates: value, 0) == 3


@pytest.mark.parametrize("value", [np.float32(3), np.array(0), [3], np.array(True), 3.0])
def test_a_function_may_return_nothing_else(value):
    with pytest.raises((TypeError, ValueError), match="must return an integer >= 1"):
        schedule.length_at(lambda updates: value, 0)
