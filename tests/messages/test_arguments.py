"""Constructor arguments: their order, which are refused and how, and what is set afterwards."""

import contextlib
import inspect
import types

import hosts
import numpy as np
import pytest
from cases import every_name, keras2_has_no, once_by_torch, once_on_keras3
from hosts import accum, keras
from training import MICRO, assert_same_training, compiled, data, dense_model, fit, train

RATE = "lr" if hosts.IS_KERAS2 and keras.__version__ < "2.3" else "learning_rate"
pytestmark = once_on_keras3
only_keras3 = pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 accumulates by itself")


def parameters(function):
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return [p for p in inspect.signature(function).parameters.values() if p.kind not in kinds]


@every_name
def test_the_stock_arguments_come_first(name):
    """They keep their order and their defaults, so that positional calls mean the same."""
    stock = parameters(hosts.stock(name).__init__)
    stock = [p for p in stock if not (name == "AMSGrad" and p.name == "amsgrad")]
    ours = parameters(getattr(accum, f"{name}Accumulate"))
    assert [p.name for p in ours[: len(stock)]] == [p.name for p in stock]
    for mine, theirs in zip(ours, stock):
        assert mine.default == theirs.default or mine.name == "name"
    added = {p.name: p.default for p in ours[len(stock) :]}
    assert (added["accum_iters"], added["reduction"], added["skip_nonfinite"]) == (1, "auto", False)
    assert {p.kind for p in ours[len(stock) :]} == {inspect.Parameter.KEYWORD_ONLY}
    assert {"lr", "learning_rate", "decay"} <= {p.name for p in ours}


@keras2_has_no("names of optimizers")
def test_a_class_that_names_itself():
    class Named(type(hosts.stock("Adam"))):
        def __init__(self, **kwargs):
            super().__init__(name="my_name", **kwargs)

    assert accum.accumulating(Named)(accum_iters=2).get_config()["name"] == "my_name"


class Mixin:
    """Members that have nothing to do with optimizers."""


class WithItsOwn(accum.AdamAccumulate):
    def __init__(self, rate, every=3):
        super().__init__(rate, accum_iters=every)


@pytest.mark.parametrize(
    "bases, like",
    [
        ((accum.AdamAccumulate, Mixin), accum.AdamAccumulate),
        ((Mixin, accum.AdamAccumulate), accum.AdamAccumulate),
        ((Mixin, WithItsOwn), lambda rate, every=3: None),
    ],
)
def test_a_subclass(bases, like):
    """Its stock class is that of its parent, and its signature that of its constructor."""
    cls = type("Mine", bases, {})
    assert inspect.signature(cls) == inspect.signature(like)
    optimizer = compiled(dense_model(), cls(0.25)).optimizer
    assert optimizer._stock_class is accum.AdamAccumulate._stock_class
    assert cls(0.5).get_config()[RATE] == 0.5


def test_python_looks_at_all_members():
    """Also while a state waits for the variables, which aren't there yet."""
    optimizer = hosts.ours("Adam", accum_iters=2)
    optimizer.set_state({"completed_updates": 3})
    for looked_at in (type(optimizer), optimizer):
        assert {"accum_iters", "reduction"} <= {*dict(inspect.getmembers(looked_at))}
    assert hasattr(optimizer, "variables") == hosts.IS_LEGACY  # where it is a method
    with pytest.raises(ValueError, match="wait|before the optimizer has its variables"):
        getattr(optimizer, "weights" if hosts.IS_LEGACY or hosts.IS_KERAS2 else "variables")


# Arguments, and what the message must say. Those that need no host, and more of the words, are in
# tests/pure/test_messages.py.
REFUSED = [
    ({"accum_iters": 0}, ["accum_iters", "integer >= 1", "accum_iters=0"]),
    ({"lr": 0.5, "learning_rate": 0.25}, ["lr=0.5", "learning_rate=0.25"]),
    ({"clipnorm": 1.0, "global_clipnorm": 2.0}, ["clipnorm", "global_clipnorm"]),
]
if not (hosts.IS_LEGACY or hosts.IS_KERAS2):  # which leave it to the first step
    said = ["abc"] if hosts.IS_NEW_STYLE else ["learning_rate", "Schedule", "abc"]
    REFUSED += [({rate: "abc"}, said) for rate in ("learning_rate", "lr")]
if not hosts.IS_KERAS2:
    REFUSED += [({"decay": -0.5}, ["decay", "legacy" if hosts.IS_NEW_STYLE else "-0.5"])]
if hosts.IS_KERAS3:
    both = {"gradient_accumulation_steps": 4, "accum_iters": 5}
    REFUSED += [(both, ["gradient_accumulation_steps=4", "accum_iters=5"])]
if hosts.IS_LEGACY:
    newer = {"weight_decay": 0.1}, {"use_ema": True}
    REFUSED += [(argument, ["newer style", *argument]) for argument in newer]


@pytest.mark.parametrize("arguments, said", REFUSED, ids=[str(bad) for bad, _ in REFUSED])
def test_refused(arguments, said):
    """Wrong arguments raise an error at construction, with the words that help."""
    with pytest.raises((TypeError, ValueError)) as refusal:
        hosts.ours("Adam", **arguments)
    for words in said:
        assert words in str(refusal.value)


@pytest.mark.parametrize("more", [(), (0.0,), (0.0, False)], ids=str)
def test_the_copied_class_s_order_of_arguments(more):
    """Its last argument is `accum_iters`, where other Kerases have a flag, a decay or a clip."""
    with pytest.raises(ValueError, match="did you mean `accum_iters=5`"):
        accum.AdamAccumulate(0.001, 0.9, 0.999, None, *more, 5)


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about an error of tf_keras")
@pytest.mark.parametrize("accum_iters", [1, 2])
def test_a_tensor_in_the_place_of_a_variable(accum_iters):
    """It is refused, and the optimizer forgets the tensor."""
    tensor, w = hosts.tf.constant([1.0]), hosts.variable([1.0], "w", "float32")
    optimizer = hosts.ours("SGD", accum_iters=accum_iters)
    for call in (optimizer.apply_gradients, hosts.tf.function(optimizer.apply_gradients)):
        with pytest.raises(NotImplementedError, match="Updating a `Tensor` is not implemented"):
            call([(tensor, tensor)])
    optimizer.apply_gradients([(tensor, w)])
    assert optimizer.completed_updates == 1 // accum_iters


def test_a_class_or_a_name_in_compile():
    """The message is Keras's, and the guide has it. Keras 3.16 takes a class; `fit` warns."""
    said = "Could not interpret optimizer identifier: <class .*AdamAccumulate'>"
    model, refuses = dense_model(), pytest.raises(ValueError, match=said)
    with contextlib.nullcontext() if hosts.IS_KERAS_3_16 else refuses:
        model.compile(accum.AdamAccumulate, "mse")
    if hosts.IS_KERAS_3_16:
        with pytest.warns(UserWarning, match="AdamAccumulate has accum_iters=1"):
            fit(model, MICRO)
    said = "Could not interpret|Unknown optimizer"  # where Keras knows only the lower case
    said = r"no place for accum_iters.*`AdamAccumulate\(accum_iters" if hosts.IS_KERAS2 else said
    with pytest.raises(ValueError, match=said):
        dense_model().compile("AdamAccumulate", "mse")


def test_accum_iters_can_be_set():
    optimizer = hosts.ours("SGD", accum_iters=2)
    optimizer.accum_iters = 4
    fit(compiled(dense_model(), optimizer), 2, epochs=1)
    assert optimizer.completed_updates == len(data()[0]) / 8
    optimizer.accum_iters = 7.0
    assert optimizer.get_config()["accum_iters"] == optimizer.accum_iters == 7
    assert type(optimizer.get_config()["accum_iters"]) is type(optimizer.accum_iters) is int
    for wrong in (0, 2.5):
        with pytest.raises((TypeError, ValueError), match="accum_iters.*integer >= 1.*Received"):
            optimizer.accum_iters = wrong
    assert optimizer.accum_iters == 7


# A name, the value given to the constructor, and the values that are then assigned.
FIXED = [
    ("reduction", "sum", ["nonsense", "mean"]),
    ("gate", "conditional", ["nonsense", "select"]),
    ("skip_nonfinite", True, ["no", False]),
]


@pytest.mark.parametrize("name, given, assigned", FIXED, ids=[name for name, *_ in FIXED])
def test_an_argument_that_is_assigned_later_is_refused(name, given, assigned):
    """The traced train steps wouldn't see the new value, and a file with it wouldn't load."""
    optimizer = accum.AdamAccumulate(accum_iters=3, **{name: given})
    for value in assigned:
        with pytest.raises(AttributeError, match=f"`{name}` can't.*from_optimizer.*{value!r}"):
            setattr(optimizer, name, value)
    assert getattr(optimizer, name) == optimizer.get_config()[name] == given
    default = getattr(accum.AdamAccumulate(), name)
    other = accum.AdamAccumulate.from_optimizer(optimizer, **{name: default})
    assert getattr(other, name) == default


@only_keras3
def test_decay_is_assigned_later():
    with pytest.raises(AttributeError, match="`decay` can't.*from_optimizer.*, decay=0.2"):
        hosts.ours("Adam").decay = 0.2


@once_by_torch
@only_keras3
def test_keras_s_own_accumulation():
    """It can't be added to ours. At accum_iters=1 it is the stock optimizer's, and that is said."""
    optimizer = hosts.ours("Adam", accum_iters=3)
    optimizer.gradient_accumulation_steps = 3
    with pytest.raises(ValueError, match="give `accum_iters`.*gradient_accumulation_steps=3"):
        hosts.build_on(optimizer, dense_model().trainable_variables)
    arguments = {"learning_rate": 0.1, "gradient_accumulation_steps": 4}
    with pytest.warns(UserWarning, match=r"write AdamAccumulate\(accum_iters=4\)") as said:
        own = train(hosts.ours("Adam", **arguments), 2)
    assert sum("accum_iters" in str(each.message) for each in said) == 1, "`fit` says more"
    assert_same_training(own, train(hosts.stock("Adam", **arguments), 2))


@every_name
def test_lr_is_learning_rate(name):
    optimizer, rates = hosts.ours(name, lr=0.5), []

    def note():
        rates.append([float(hosts.array(v)) for v in (optimizer.lr, optimizer.learning_rate)])

    note()
    optimizer.lr = 0.25
    note()
    optimizer.learning_rate = 0.125
    note()
    assert rates == [[0.5, 0.5], [0.25, 0.25], [0.125, 0.125]]
    assert optimizer.get_config()[RATE] == 0.125


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="elsewhere, it has another place")
@pytest.mark.parametrize("accum_iters", [1, 5])
def test_the_order_of_the_copied_class(accum_iters):
    """(lr, beta_1, beta_2, epsilon, decay, amsgrad, accum_iters): Keras 3's clipnorm comes last."""
    said = f"`clipnorm={accum_iters}` by position: did you mean `accum_iters={accum_iters}`"
    with pytest.raises(ValueError, match=said):
        hosts.accum.AdamAccumulate(0.001, 0.9, 0.999, 1e-7, 0.0, False, accum_iters)


@pytest.mark.skipif(hosts.IS_KERAS3, reason="Horovod has no optimizer for Keras 3")
def test_the_accumulation_of_horovod():
    """Its wrapper's attribute, as in Horovod 0.28."""
    ours, w = hosts.ours("SGD", accum_iters=2), hosts.variable([1.0, 2.0], "w")
    vars(ours)["_agg_helper"] = types.SimpleNamespace(backward_passes_per_step=3)
    with pytest.raises(ValueError, match="leave it at 1.*_per_step=3, accum_iters=2"):
        hosts.apply(ours, [np.ones(2, hosts.FLOATX)], [w])
