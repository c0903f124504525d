"""The arguments of a constructor, their checks and the messages about others, without a host."""

import dataclasses
import inspect
import re

import numpy as np
import pytest

from keras_accum import options
from keras_accum.optimizer import Accumulating
from keras_accum.options import Options
from keras_accum.schedule import ONE


class Stock:
    """As Keras's are. Its `epsilon` has a default that the host knows."""

    def __init__(self, learning_rate=0.01, momentum=0.0, epsilon=None, name="Stock", **kwargs):
        pass


Stock.__module__ = "keras.optimizers"


class Child(Stock):
    def __init__(self, pace=1.0, **kwargs):
        pass


class OfUser(Stock):
    def __init__(self, learning_rate=0.01, **kwargs):
        pass


def class_of(stock, **members):
    return type(f"{stock.__name__}Accumulate", (Accumulating, stock), members)


Ours = class_of(Stock, _unnamed=("clipnorm",))


def bind(*args, cls=Ours, lr=None, **kwargs):
    return options.bind(cls, args, kwargs, lr)


def test_the_signature_has_the_stock_arguments_first():
    names = list(Ours.__signature__.parameters)
    assert names[:4] == ["learning_rate", "momentum", "epsilon", "name"]
    assert names[4:] == [*options.NAMES, "lr", "decay", "clipnorm"]
    parameters = class_of(Child).__signature__.parameters
    assert list(parameters)[:2] == ["pace", "learning_rate"]
    assert parameters["learning_rate"].kind is parameters["learning_rate"].KEYWORD_ONLY


FIXED = class_of(Stock, _fixed={"momentum": 0.5})
BOUND = [
    (bind(0.5, 0.25), {"learning_rate": 0.5, "momentum": 0.25}),
    (bind(5, cls=class_of(Child), learning_rate=0.5), {"pace": 5, "learning_rate": 0.5}),
    (bind(0.5, 1e-3, cls=FIXED), {"learning_rate": 0.5, "epsilon": 1e-3}),
    (bind(lr=5), {"learning_rate": 5.0}),
    (bind(epsilon=None, name=None), {"name": None}),  # no epsilon is the default one
    (bind(dog=5), {"dog": 5}),  # unknown arguments are left to the stock class
    (bind(1), {"learning_rate": 1}),  # which Keras 2 is given for Adadelta
    (bind(5.0), {"learning_rate": 5.0}),
    (bind(learning_rate=5), {"learning_rate": 5}),
    (bind(5, cls=class_of(OfUser)), {"learning_rate": 5}),
]


def test_arguments_by_their_names():
    for found, expected in BOUND:
        assert found == expected


# A call, and what its error must say.
WRONG = [
    (lambda: bind(cls=FIXED, momentum=0.25), "not recognized: StockAccumulate has {'momentum': 0"),
    (lambda: bind(0.25, lr=0.5), "another name of `learning_rate`.*lr=0.5, learning_rate"),
    (lambda: bind(0.5, learning_rate=0.25), "multiple values.*'learning_rate'"),
    (lambda: bind(5), r"`learning_rate=5` by.*`accum_iters=5`.*StockAccumulate\(5,\)"),
    (lambda: bind(0.1, 5), r"`momentum=5` by position.*StockAccumulate\(0.1, 5\)"),
    (lambda: bind(0.1, 0.5, 1e-7, 5), "`name=5` by position.*`accum_iters=5`"),
    (lambda: bind(0.5, 0.5, 1e-7, "name", 0.5), "too many positional arguments"),
    (lambda: bind(0.5, 0.5, 1e-7, "name", 6), "`6` by position: did you mean `accum_iters=6`"),
]


@pytest.mark.parametrize("call, said", WRONG, ids=[said for _, said in WRONG])
def test_wrong_calls(call, said):
    with pytest.raises((TypeError, ValueError), match=said):
        call()


@pytest.mark.parametrize("name", ["warmup_steps", "norm", "mean"])
def test_a_name_that_only_looks_alike(name):
    assert bind(**{name: 5}) == {name: 5}


def test_own_arguments_and_their_defaults():
    for three in np.int64(3), 3.0, np.float16(3):  # R and JSON send whole floats
        own = Options(accum_iters=three)
        assert (own.accum_iters, own.reduction, own.gate) == (3, "auto", "auto")
        assert type(own.accum_iters) is int  # as JSON needs it
    assert Options() == Options(1, "auto", False, None, None, "auto")
    # `fit` warns of an `accum_iters` that nobody gave.
    assert Options().accum_iters is ONE and Options(1).accum_iters is not ONE


def test_an_option_is_a_field_that_the_constructor_repeats():
    """Editors know an optimizer's arguments by the constructor, `help` by the field's text."""
    parameters = list(inspect.signature(Accumulating.__init__).parameters.values())[2:]
    fields = [(field.name, field.default) for field in dataclasses.fields(Options)]
    assert [(p.name, p.default) for p in parameters][: len(fields)] == fields
    described = re.findall(r"^    (\w+): \w*", Ours.__doc__, re.M)
    assert described == [p.name for p in parameters[:-1]]


REFUSED = [
    # arguments, and what the message must say: what is allowed, what was received
    ({"accum_iters": 0}, ["integer >= 1", "accum_iters=0"]),
    ({"accum_iters": 2.5}, ["integer >= 1", "accum_iters=2.5"]),
    ({"accum_iters": True}, ["integer >= 1", "accum_iters=True"]),
    ({"accum_iters": "5"}, ["integer >= 1", "accum_iters='5'"]),
    ({"accum_iters": float("nan")}, ["integer >= 1", "accum_iters=nan"]),
    ({"accum_iters": np.float16("inf")}, ["integer >= 1", "inf"]),
    ({"accum_iters": 2.0**31}, ["below 2**31", "accum_iters=2147483648.0"]),
    ({"accum_iters": 2**31}, ["below 2**31", f"accum_iters={2**31}"]),
    ({"accum_iters": max}, ["AccumulationSchedule({0: 1,", "accum_iters=<built-in function max>"]),
    ({"reduction": "max"}, ["mean", "sum", "weighted", "reduction='max'"]),
    ({"gate": "if"}, ["auto", "select", "conditional", "gate='if'"]),
    ({"skip_nonfinite": 1}, ["True or False", "skip_nonfinite=1"]),
    ({"skip_norm": 0}, ["number > 0", "skip_norm=0"]),
    ({"window_transforms": [1]}, ["list of functions", "=[1]"]),
]


@pytest.mark.parametrize("refused, said", REFUSED, ids=[str(bad) for bad, _ in REFUSED])
def test_refused(refused, said):
    with pytest.raises((TypeError, ValueError)) as refusal:
        Options(**refused)
    for words in (list(refused)[0], *said):
        assert words in str(refusal.value)
