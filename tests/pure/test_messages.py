"""The arguments of a constructor, their checks and the messages about others, without a host."""

import numpy as np
import pytest

from keras_accum import options
from keras_accum.optimizer import Accumulating
from keras_accum.options import Options


class Stock:
    """As Keras's are. Its `epsilon` has a default that the host knows."""

    def __init__(self, learning_rate=0.01, momentum=0.0, epsilon=None, name="Stock", **kwargs):
        pass


Stock.__module__ = "keras.optimizers"


class Child(Stock):
    def __init__(self, pace=1.0, **kwargs):
        pass


def ours(stock, **members):
    return type(f"{stock.__name__}Accumulate", (Accumulating, stock), members)


Ours = ours(Stock, unnamed=("clipnorm",))


def bind(*args, cls=Ours, **kwargs):
    return options.bind(cls, args, kwargs)


def test_the_stock_arguments_come_first():
    names = list(Ours.__signature__.parameters)
    assert names[:4] == ["learning_rate", "momentum", "epsilon", "name"]
    assert names[4:] == [*options.NAMES, "lr", "decay", "clipnorm"]
    assert bind(0.5, 0.25) == {"learning_rate": 0.5, "momentum": 0.25}


def test_the_arguments_of_a_parent_are_keywords():
    parameters = ours(Child).__signature__.parameters
    assert list(parameters)[:2] == ["pace", "learning_rate"]
    assert parameters["learning_rate"].kind is parameters["learning_rate"].KEYWORD_ONLY
    assert bind(5, cls=ours(Child), learning_rate=0.5) == {"pace": 5, "learning_rate": 0.5}


def test_an_argument_with_a_fixed_value():
    fixed = ours(Stock, fixed={"momentum": 0.5})
    assert bind(0.5, 1e-3, cls=fixed) == {"learning_rate": 0.5, "epsilon": 1e-3}
    with pytest.raises(ValueError, match="not recognized: StockAccumulate has {'momentum': 0.5}"):
        bind(cls=fixed, momentum=0.25)


def test_lr_is_learning_rate():
    assert bind(lr=0.5) == {"lr": 0.5}
    assert options.bind(Ours, (), {}, lr=5) == {"learning_rate": 5.0}
    with pytest.raises(ValueError, match=r"another name of `learning_rate`.*lr=0.5, learning_rate"):
        options.bind(Ours, (0.25,), {}, lr=0.5)


def test_an_argument_given_twice():
    with pytest.raises(TypeError, match="multiple values.*'learning_rate'"):
        bind(0.5, learning_rate=0.25)


def test_no_epsilon_is_the_default_one():
    assert bind(epsilon=None, name=None) == {"name": None}


def test_an_unknown_argument_is_left_to_the_stock_class():
    assert bind(dog=5) == {"dog": 5}


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
    ],
)
def test_an_unknown_argument_near_one_that_is_known(name, meant):
    with pytest.raises(ValueError, match=f"{{'{name}': 5}}. Did you mean `{meant}`[?] StockAcc"):
        bind(**{name: 5})


def test_an_integer_that_is_meant_as_accum_iters():
    said = r"Argument 1 is `learning_rate`. Did you mean `accum_iters=5`.*StockAccumulate\(5\)"
    with pytest.raises(ValueError, match=said):
        bind(5)
    with pytest.raises(ValueError, match=r"Argument 2 is `momentum`.*StockAccumulate\(0.1, 5\)"):
        bind(0.1, 5)
    assert bind(1) == {"learning_rate": 1}  # which Keras 2 is given for Adadelta
    assert bind(5.0) == {"learning_rate": 5.0}
    assert bind(learning_rate=5) == {"learning_rate": 5}


def test_an_integer_that_somebody_else_s_class_takes():
    class Somebodys(Stock):
        def __init__(self, learning_rate=0.01, **kwargs):
            pass

    assert bind(5, cls=ours(Somebodys)) == {"learning_rate": 5}


def test_too_many_arguments():
    with pytest.raises(TypeError, match="takes 4 arguments.*`accum_iters=5`.*in addition: 6, 'x'"):
        bind(0.5, 0.5, 1e-7, "name", 6, "x")


class Optimizer:
    pass


@pytest.mark.parametrize("given", [Optimizer, Optimizer()])
def test_an_optimizer_in_the_place_of_the_rate(given):
    for call in (lambda: bind(given), lambda: options.bind(Ours, (), {}, lr=given)):
        with pytest.raises(TypeError, match="not an optimizer.*StockAccumulate.from_optimizer"):
            call()


# -- our own arguments -------------------------------------------------------------------------


def test_own_arguments_and_their_defaults():
    own = Options(accum_iters=np.int64(3))
    assert (own.accum_iters, own.reduction, own.gate) == (3, "mean", "select")
    assert type(own.accum_iters) is int  # as JSON needs it
    assert Options() == Options(1, "mean", False, None, None, "select", "per_micro_batch")


REFUSED = [
    # arguments, what the message must say: the argument, what is allowed, what was received
    ({"accum_iters": 0}, ["`accum_iters`", "integer >= 1", "accum_iters=0"]),
    ({"accum_iters": 2.5}, ["`accum_iters`", "integer >= 1", "accum_iters=2.5"]),
    ({"accum_iters": True}, ["`accum_iters`", "integer >= 1", "accum_iters=True"]),
    ({"accum_iters": "5"}, ["`accum_iters`", "integer >= 1", "accum_iters='5'"]),
    ({"accum_iters": [4]}, ["`accum_iters`", "integer >= 1", "accum_iters=[4]"]),
    ({"reduction": "max"}, ["`reduction`", "mean", "sum", "weighted", "reduction='max'"]),
    ({"gate": "branch"}, ["`gate`", "select", "conditional", "gate='branch'"]),
    ({"gate": "if"}, ["`gate`", "callbacks=[PythonGate()]", "gate='if'"]),
    (
        {"all_reduce": "window"},
        ["`all_reduce`", "per_micro_batch", "per_window", "all_reduce='window'"],
    ),
    (
        {"all_reduce": "per_window"},
        ["all_reduce='per_window'", "gate='conditional'", "gate='select'"],
    ),
    ({"skip_nonfinite": 1}, ["`skip_nonfinite`", "True or False", "skip_nonfinite=1"]),
    ({"skip_norm": 0}, ["`skip_norm`", "number > 0", "skip_norm=0"]),
    ({"window_transforms": [1]}, ["`window_transforms`", "list of functions", "=[1]"]),
]


@pytest.mark.parametrize("refused, said", REFUSED, ids=[str(bad) for bad, _ in REFUSED])
def test_refused(refused, said):
    with pytest.raises((TypeError, ValueError)) as refusal:
        Options(**refused)
    for words in said:
        assert words in str(refusal.value)
