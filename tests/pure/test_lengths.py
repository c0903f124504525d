"""A schedule of windows: the lengths, how many updates they make, and its check."""

import json

import numpy as np
import pytest

from keras_accum.schedule import AccumulationSchedule

LENGTHS = {0: 2, 3: 1, 4: 5, 9: 3}
FOUND = AccumulationSchedule(LENGTHS)
EACH = [2, 2, 2, 1, 5, 5, 5, 5, 5, 3, 3, 3]
ENDS = np.cumsum(EACH)


def test_the_length_of_each_window():
    updates = np.arange(12)
    assert [FOUND(n) for n in updates] == EACH
    assert FOUND.in_step(np, updates).tolist() == EACH


def test_updates_are_counted():
    """Also of a schedule with one length, and beyond its last key."""
    found = [FOUND.updates_in(micro_batches) for micro_batches in range(ENDS[-1] + 1)]
    assert found == [(ENDS <= micro_batches).sum() for micro_batches in range(ENDS[-1] + 1)]
    assert found[-1] == len(EACH) and found[0] == 0
    assert FOUND.updates_in(ENDS[-1] + 3 * 1000) == len(EACH) + 1000
    assert AccumulationSchedule({0: 4}).updates_in(11) == 2


def test_whole_floats():
    """As R and JSON send them."""
    found = AccumulationSchedule([[0.0, 2.0], [np.float32(3), np.float64(5)]])
    assert json.dumps(found.get_config()) == '{"lengths": [[0, 2], [3, 5]]}'


def test_a_config_makes_an_equal_schedule():
    pairs = AccumulationSchedule(list(LENGTHS.items())[::-1])
    config = json.loads(json.dumps(FOUND.get_config()))  # as a file holds it
    for other in (pairs, AccumulationSchedule.from_config(config)):
        assert [other(n) for n in range(12)] == EACH
        assert other.get_config() == FOUND.get_config()
        assert repr(other) == "AccumulationSchedule({0: 2, 3: 1, 4: 5, 9: 3})"


@pytest.mark.parametrize(
    "lengths, error, said",
    [
        (5, TypeError, "`lengths` must be a dictionary"),
        ({1: 2}, ValueError, "must have the key 0"),
        ({0: 0}, ValueError, "Received: lengths.0.=0"),
        ({0: True}, TypeError, "Received: lengths.0.=True"),
        ({0: 2**31}, ValueError, "`lengths.0.` must be an integer"),
        ({0: 1, -1: 2}, ValueError, "keys of `lengths`.*Received: -1"),
        ({0: 1, 2.5: 2}, ValueError, "keys of `lengths`.*Received: 2.5"),
        ({0: 1, "9": 2}, TypeError, "keys of `lengths`.*Received: '9'"),
    ],
)
def test_a_schedule_is_refused_when_it_is_made(lengths, error, said):
    with pytest.raises(error, match=said):
        AccumulationSchedule(lengths)
