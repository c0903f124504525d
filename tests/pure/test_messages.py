"""The allowed values of constructor arguments, and the messages about others, without a host."""

import numpy as np
import pytest

from keras_accum import arguments, ranges


class Stock:
    """As Keras's are. Its `epsilon` has a default that the host knows."""

    def __init__(self, learning_rate=0.01, momentum=0.0, epsilon=None, name="Stock", **kwargs):
        pass


Stock.__module__ = "keras.optimizers"


class Lion(Stock):
    def __init__(self, learning_rate=0.01, beta_1=0.9, nesterov=False, **kwargs):
        pass


Lion.__module__ = "keras.optimizers"


class Somebodys(Stock):
    """In which names of Keras's arguments mean something else."""

    def __init__(self, learning_rate=0.01, momentum="heavy", rho=-7, **kwargs):
        pass


class Port:
    can_reduce_late, elsewhere = True, {}


def ours(stock):
    more = {"clipnorm": None, "ema_overwrite_frequency": None}
    members = {
        "_port": Port,
        "_stock_class": stock,
        "__signature__": arguments.signature(stock, fixed=(), more=more),
    }
    return type(f"{stock.__name__}Accumulate", (), members)


Ours = ours(Stock)


def bind(*args, stock=Stock, **kwargs):
    return arguments.bind(ours(stock), args, kwargs, TypeError)


def test_the_stock_arguments_come_first():
    names = list(Ours.__signature__.parameters)
    more = ["clipnorm", "ema_overwrite_frequency"]
    assert names == ["learning_rate", "momentum", "epsilon", "name", *arguments.OWN, *more]
    assert bind(0.5, 0.25) == {"learning_rate": 0.5, "momentum": 0.25}


def test_lr_is_learning_rate():
    assert bind(lr=0.5) == {"learning_rate": 0.5}
    with pytest.raises(ValueError, match=r"another name of `learning_rate`.*lr=0.5, learning_rate"):
        bind(lr=0.5, learning_rate=0.25)


def test_an_unknown_argument():
    with pytest.raises(TypeError, match="Unexpected.*: {'dog': 5}. StockAccumulate takes"):
        bind(dog=5)


@pytest.mark.parametrize(
    "name, meant",
    [
        ("accum_iter", "accum_iters"),
        ("accum_steps", "accum_iters"),
        ("accumulate", "accum_iters"),
        ("accumulation_steps", "accum_iters"),
        ("accumulate_grad_batches", "accum_iters"),
        ("grad_accum", "accum_iters"),
        ("gradient_accumulation_steps", "accum_iters"),
        ("learnig_rate", "learning_rate"),
        ("clip_norm", "clipnorm"),
        ("eps", "epsilon"),
        ("skip_nan", "skip_nonfinite"),
    ],
)
def test_an_unknown_argument_near_one_that_is_known(name, meant):
    with pytest.raises(TypeError, match=f"{{'{name}': 5}}. Did you mean `{meant}`[?] StockAcc"):
        bind(**{name: 5})


def test_several_unknown_arguments():
    said = "Did you mean `momentum` for `momentun`, `accum_iters` for `grad_accum`[?]"
    with pytest.raises(TypeError, match=said):
        bind(momentun=0.5, dog=5, grad_accum=5)


# -- ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value, error, allowed",
    [
        ("learning_rate", -0.5, ValueError, "a float >= 0"),
        ("learning_rate", float("nan"), ValueError, "a float >= 0"),
        ("momentum", 1.5, ValueError, "a float in [0, 1]"),
        ("momentum", "0.5", TypeError, "a float in [0, 1]"),
        ("momentum", True, TypeError, "a float in [0, 1]"),
        ("momentum", None, TypeError, "a float in [0, 1]"),
        ("momentum", [0.5], TypeError, "a float in [0, 1]"),
        ("epsilon", -1, ValueError, "a float >= 0"),
        ("decay", -0.5, ValueError, "a float >= 0"),
        ("clipnorm", "a", TypeError, "a float >= 0 or None"),
        ("clipnorm", np.float32(-1), ValueError, "a float >= 0 or None"),
        ("ema_overwrite_frequency", 0, ValueError, "an integer >= 1 or None"),
        ("ema_overwrite_frequency", 2.0, ValueError, "an integer >= 1 or None"),
    ],
)
def test_out_of_range(name, value, error, allowed):
    with pytest.raises(error) as refusal:
        bind(**{name: value})
    assert f"`{name}` must be {allowed}. Received: {name}=" in str(refusal.value)


@pytest.mark.parametrize(
    "name, value",
    [
        ("learning_rate", 0.0),
        ("learning_rate", abs),
        ("momentum", 0),
        ("momentum", 1.0),
        ("momentum", np.float32(0.5)),
        ("momentum", np.ones(())),  # as a tensor: the host knows what to do with one
        ("epsilon", None),
        ("decay", None),
        ("clipnorm", None),
        ("clipnorm", 0),
        ("clipnorm", float("inf")),
        ("ema_overwrite_frequency", np.int64(3)),
    ],
)
def test_in_range(name, value):
    assert bind(**{name: value}).get(name) is value or value is None


def test_the_stock_class_has_its_say():
    """Its message stays, and has what was received."""

    class Strict(Stock):
        def __init__(self, rho=0.9, beta_1=0.9, epsilon=None):
            if rho >= 1:
                raise ValueError("Not such a rho.")
            if beta_1 >= 1:
                raise ValueError(f"No: beta_1={beta_1}.")
            if epsilon is not None:
                raise ValueError("There is no variable.")

    Strict.__module__ = "keras.optimizers"
    with pytest.raises(ValueError, match="^Not such a rho. Received: rho=1.5$"):
        bind(stock=Strict, rho=1.5)
    with pytest.raises(ValueError, match="^No: beta_1=1.5.$"):
        bind(stock=Strict, beta_1=1.5)
    with pytest.raises(ValueError, match="^`epsilon` must be a float >= 0. Received"):
        bind(stock=Strict, epsilon=-1.0)
    with pytest.raises(TypeError, match=r"`rho` must be a float in \[0, 1\)"):  # it can't compare
        bind(stock=Strict, rho="a")


def test_a_class_of_keras_whose_argument_has_another_range():
    assert bind(stock=Lion, beta_1=1.0) == {"beta_1": 1.0}
    with pytest.raises(ValueError, match=r"`beta_1` must be a float in \(0, 1\]"):
        bind(stock=Lion, beta_1=0.0)
    assert bind(stock=Lion, nesterov=1) == {"nesterov": 1}  # as in code for Keras 2
    with pytest.raises(TypeError, match="`nesterov` must be a boolean. Received: nesterov='False'"):
        bind(stock=Lion, nesterov="False")


def test_arguments_of_somebody_else_are_not_looked_at():
    given = {"momentum": "light", "rho": -8}
    assert bind(5, stock=Somebodys, **given) == {"learning_rate": 5, **given}
    with pytest.raises(ValueError, match="`clipnorm` must be"):  # it's Keras's that reads it
        bind(stock=Somebodys, clipnorm=-1.0)


def test_what_a_config_says_is_not_looked_at():
    with arguments.unchecked():
        assert bind(momentum=1.5) == {"momentum": 1.5}
    with pytest.raises(ValueError):
        bind(momentum=1.5)


def test_an_integer_in_the_first_place():
    said = r"first argument is `learning_rate`. Did you mean `accum_iters=5`.*StockAccumulate\(5\)"
    with pytest.raises(ValueError, match=said):
        bind(5)
    assert bind(1) == {"learning_rate": 1}  # which Keras 2 is given for Adadelta
    assert bind(5.0) == bind(lr=5) == {"learning_rate": 5.0}
    assert bind(learning_rate=5) == {"learning_rate": 5}


ENTRIES = {
    entry
    for entries in (ranges.OF_KERAS, *ranges.EXCEPTIONS.values())
    for name, entry in entries.items()
    if name in ranges.OF_KERAS
}


@pytest.mark.parametrize("entry", sorted(ENTRIES))
def test_the_table(entry):
    """Each entry has a range that can be checked, and a default in this range."""
    allowed = ranges.range_of(entry)
    assert ranges.is_allowed("a", allowed) is False
    assert ranges.is_allowed(ranges.default_of(entry), allowed) is True


def test_our_arguments_in_the_table():
    defaults = {"accum_iters": 1, "skip_nonfinite": False, "skip_norm": None}
    defaults["window_transforms"] = None
    defaults.update(lr=None, decay=None)
    choices = {"reduction": "mean", "gate": "select", "all_reduce": "per_micro_batch"}
    assert arguments.OWN == {**defaults, **choices}
    assert arguments.REDUCTIONS == ("mean", "sum", "weighted")
    assert arguments.GATES == ("select", "conditional")
    assert arguments.ALL_REDUCES == ("per_micro_batch", "per_window")


# -- our own arguments -------------------------------------------------------------------------


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
    ({"accum_iters": [4]}, ["`accum_iters`", "integer >= 1", "accum_iters=[4]"]),
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


def test_learning_rates():
    assert arguments.check_learning_rate(1, ()) == 1.0
    assert arguments.check_learning_rate(abs, ()) is abs
    with pytest.raises(TypeError, match="`learning_rate` must be a number.*'abc'"):
        arguments.check_learning_rate("abc", ())
