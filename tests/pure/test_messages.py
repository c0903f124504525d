"""The allowed values of constructor arguments, and the messages about others, without a host."""

import numpy as np
import pytest

from keras_accum import arguments


class Stock:
    def __init__(self, learning_rate=0.01, momentum=0.0, name="Stock", **kwargs):
        pass


class Ours:
    _can_reduce_late = True
    __signature__ = arguments.signature(Stock, fixed=(), more={"clipnorm": None})


def bind(*args, **kwargs):
    return arguments.bind(Ours, args, kwargs, TypeError)


def test_the_stock_arguments_come_first():
    names = list(Ours.__signature__.parameters)
    assert names == ["learning_rate", "momentum", "name", *arguments.OWN, "clipnorm"]
    assert bind(0.5, 0.25) == {"learning_rate": 0.5, "momentum": 0.25}


def test_lr_is_learning_rate():
    assert bind(lr=0.5) == {"learning_rate": 0.5}
    with pytest.raises(ValueError, match=r"another name of `learning_rate`.*lr=0.5, learning_rate"):
        bind(lr=0.5, learning_rate=0.25)


def test_an_unknown_argument():
    with pytest.raises(TypeError, match="not recognized: {'accumulate': 5}.*accum_iters"):
        bind(accumulate=5)


def test_own_arguments_and_their_defaults():
    given = {"learning_rate": 0.5, "accum_iters": np.int64(3)}
    own = arguments.pop_own(Ours, given)
    assert given == {"learning_rate": 0.5}
    assert (own["accum_iters"], own["reduction"], own["gate"]) == (3, "mean", "select")
    assert type(own["accum_iters"]) is int  # as JSON needs it


REFUSED = [
    # arguments, what the message must say: the argument, what is allowed, what was received
    ({"accum_iters": 0}, ["`accum_iters`", "integer >= 1", "accum_iters=0"]),
    ({"accum_iters": 2.5}, ["`accum_iters`", "integer >= 1", "accum_iters=2.5"]),
    ({"accum_iters": True}, ["`accum_iters`", "integer >= 1", "accum_iters=True"]),
    ({"accum_iters": "5"}, ["`accum_iters`", "integer >= 1", "accum_iters='5'"]),
    ({"accum_iters": None}, ["`accum_iters`", "integer >= 1", "accum_iters=None"]),
    ({"reduction": "max"}, ["`reduction`", "mean", "sum", "weighted", "reduction='max'"]),
    ({"gate": "if"}, ["`gate`", "select", "conditional", "gate='if'"]),
    (
        {"all_reduce": "late"},
        ["`all_reduce`", "per_micro_batch", "per_window", "all_reduce='late'"],
    ),
    (
        {"all_reduce": "per_window"},
        ["all_reduce='per_window'", "gate='conditional'", "gate='select'"],
    ),
    ({"skip_nonfinite": 1}, ["`skip_nonfinite`", "True or False", "skip_nonfinite=1"]),
]


@pytest.mark.parametrize("refused, said", REFUSED, ids=[str(bad) for bad, _ in REFUSED])
def test_refused(refused, said):
    with pytest.raises((TypeError, ValueError)) as refusal:
        arguments.pop_own(Ours, dict(refused))
    for words in said:
        assert words in str(refusal.value)


@pytest.mark.parametrize("value, error", [(-0.5, ValueError), ("0.1", TypeError)])
def test_numbers_that_are_refused(value, error):
    for check in (arguments.check_decay, lambda v: arguments.check_clip("clipnorm", v)):
        with pytest.raises(error, match=">= 0"):
            check(value)


def test_learning_rates():
    assert arguments.check_learning_rate(1, ()) == 1.0
    assert arguments.check_learning_rate(abs, ()) is abs
    with pytest.raises(TypeError, match="`learning_rate` must be a number.*'abc'"):
        arguments.check_learning_rate("abc", ())
