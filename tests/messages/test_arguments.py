"""Constructor arguments: their order, which are refused and how, and what a config keeps."""

import inspect

import hosts
import numpy as np
import pytest
from cases import LATE, every_name, keras2_has_no
from hosts import keras
from training import compiled, data, dense_model, fit, slots

every_class = every_name
FIRST = RATE = "lr" if hosts.IS_KERAS2 and keras.__version__ < "2.3" else "learning_rate"


# -- signatures --------------------------------------------------------------------------------


def parameters(function):
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return [p for p in inspect.signature(function).parameters.values() if p.kind not in kinds]


@every_class
def test_the_stock_arguments_come_first(name):
    """They keep their order and their defaults, so that positional calls mean the same."""
    stock = parameters(hosts.stock(name).__init__)
    stock = [p for p in stock if not (name == "AMSGrad" and p.name == "amsgrad")]
    ours = parameters(getattr(hosts.accum, f"{name}Accumulate"))
    assert [p.name for p in ours[: len(stock)]] == [p.name for p in stock]
    for mine, theirs in zip(ours, stock):
        assert mine.default == theirs.default or mine.name == "name"
    added = {p.name: (p.default, p.kind) for p in ours[len(stock) :]}
    keyword = inspect.Parameter.KEYWORD_ONLY
    assert added["accum_iters"] == (1, keyword)
    assert added["reduction"] == ("mean", keyword)
    assert added["skip_nonfinite"] == (False, keyword)
    assert {"lr", "learning_rate", "decay"} <= {p.name for p in ours}


@keras2_has_no("RMSprop with momentum")
def test_positional_arguments():
    config = hosts.ours("RMSprop", accum_iters=2).get_config()
    positional = hosts.accum.RMSpropAccumulate(0.5, 0.75, 0.25, 1e-3, accum_iters=2).get_config()
    changed = {"learning_rate": 0.5, "rho": 0.75, "momentum": 0.25, "epsilon": 1e-3}
    assert {**config, **changed, "name": ""} == {**positional, "name": ""}


_OPTIMIZERS = getattr(keras.optimizers, "legacy", keras.optimizers)
_ADAM = (_OPTIMIZERS if hosts.IS_LEGACY else keras.optimizers).Adam


class Paced(_ADAM):
    """Somebody's optimizer: all arguments but its own are its parent's."""

    def __init__(self, pace=1.0, **kwargs):
        super().__init__(**kwargs)
        self.pace = pace

    def get_config(self):
        return {**super().get_config(), "pace": self.pace}


@keras2_has_no("accumulating")
def test_a_class_takes_the_arguments_of_its_parent():
    cls = hosts.accum.accumulating(Paced)
    given = {RATE: 0.5, "beta_1": 0.25, "clipvalue": 2.0, "pace": 0.75, "accum_iters": 3}
    optimizer = cls(**given)
    config = optimizer.get_config()
    assert {name: float(config[name]) for name in given} == given
    again = cls.from_config(config)
    assert {**again.get_config(), "name": ""} == {**config, "name": ""}
    with pytest.raises((TypeError, ValueError), match="{.amsgrd.: True}. Did you mean `amsgrad`"):
        cls(amsgrd=True)


@keras2_has_no("names of optimizers")
def test_a_class_that_names_itself():
    class Named(_ADAM):
        def __init__(self, **kwargs):
            super().__init__(name="my_name", **kwargs)

    assert hosts.accum.accumulating(Named)(accum_iters=2).get_config()["name"] == "my_name"


# -- refusals ----------------------------------------------------------------------------------

# Arguments, and what the message must say: the argument, what is allowed, what was received. Those
# that need no host are in tests/pure/test_messages.py.
REFUSED = [
    ({"accum_iters": 0}, ["accum_iters", "integer >= 1", "accum_iters=0"]),
    ({"accum_iters": 2**31}, ["accum_iters", "below 2**31", f"accum_iters={2**31}"]),
    ({**LATE, "skip_nonfinite": True}, ["all_reduce", "skip_nonfinite=True"]),
    ({**LATE, "skip_norm": 2}, ["all_reduce", "skip_norm=2.0"]),
    ({"accum_steps": 5}, ["{'accum_steps': 5}", "Did you mean `accum_iters`?"]),
    ({"lr": 0.5, "learning_rate": 0.25}, ["lr=0.5", "learning_rate=0.25"]),
    ({"clipnorm": 1.0, "global_clipnorm": 2.0}, ["clipnorm", "global_clipnorm"]),
]
if not hosts.IS_TENSORFLOW or hosts.IS_KERAS2:
    REFUSED += [(LATE, ["all_reduce='per_window' is for tf.distribute"])]
if not (hosts.IS_LEGACY or hosts.IS_KERAS2):  # which leave it to the first step
    REFUSED += [
        ({rate: "abc"}, ["abc"] if hosts.IS_NEW_STYLE else ["learning_rate", "Schedule", "abc"])
        for rate in ("learning_rate", "lr")
    ]
if not hosts.IS_KERAS2:
    REFUSED += [({"decay": -0.5}, ["decay", "legacy" if hosts.IS_NEW_STYLE else "-0.5"])]
if hosts.IS_KERAS3:
    both = {"gradient_accumulation_steps": 4, "accum_iters": 5}
    said = ["gradient_accumulation_steps=4", "accum_iters=5"]
    REFUSED += [(both, said)]
else:
    steps = {"gradient_accumulation_steps": 5}
    REFUSED += [(steps, [f"{steps}", "Did you mean `accum_iters`?"])]


@pytest.mark.parametrize("arguments, said", REFUSED, ids=[str(bad) for bad, _ in REFUSED])
def test_refused(arguments, said):
    with pytest.raises((TypeError, ValueError)) as refusal:
        hosts.ours("Adam", **arguments)
    for words in said:
        assert words in str(refusal.value)


def test_an_unknown_keyword_is_refused_as_by_the_stock_optimizer():
    with pytest.raises((TypeError, ValueError)) as of_stock:
        hosts.stock("SGD", dog=5)
    words, colon, _ = str(of_stock.value).partition(": ")
    with pytest.raises(of_stock.type) as refusal:
        hosts.ours("SGD", dog=5)
    if not hosts.IS_NEW_STYLE:  # whose words name a class that users don't know
        assert str(refusal.value).startswith(words + colon)


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about an error of tf_keras")
@pytest.mark.parametrize("accum_iters", [1, 2])
def test_a_tensor_in_the_place_of_a_variable(accum_iters):
    """The error is the stock legacy optimizer's, and the optimizer forgets the tensor."""
    tensor, w = hosts.tf.constant([1.0]), hosts.variable([1.0], "w", "float32")
    legacy = getattr(keras.optimizers, "legacy", keras.optimizers)
    optimizers = [legacy.SGD(), hosts.ours("SGD", accum_iters=accum_iters)]
    for step in [optimizer.apply_gradients for optimizer in optimizers]:
        for call in (step, hosts.tf.function(step)):
            with pytest.raises(NotImplementedError, match="Updating a `Tensor` is not implemented"):
                call([(tensor, tensor)])
    ours = optimizers[1]
    ours.apply_gradients([(tensor, w)])
    assert ours.completed_updates == 1 // accum_iters


@pytest.mark.parametrize("accum_iters", [0, 2.5])
def test_refused_by_the_setter(accum_iters):
    optimizer = hosts.ours("SGD", accum_iters=2)
    with pytest.raises((TypeError, ValueError), match="accum_iters.*integer >= 1.*Received"):
        optimizer.accum_iters = accum_iters
    assert optimizer.accum_iters == 2


# A name, the value given to the constructor, and the values that are then assigned.
FIXED = [
    ("reduction", "sum", ["nonsense", "mean"]),
    ("gate", "conditional", ["nonsense", "select"]),
    ("all_reduce", "per_micro_batch", ["zzz", "per_window"]),
    ("skip_nonfinite", True, ["no", False]),
]


@pytest.mark.parametrize("name, given, assigned", FIXED, ids=[name for name, *_ in FIXED])
def test_an_argument_that_is_assigned_later_is_refused(name, given, assigned):
    """The traced train steps wouldn't see the new value, and a file with it wouldn't load."""
    made_by = hosts.accum.AdamAccumulate
    optimizer = made_by(accum_iters=3, **{name: given})
    for value in assigned:
        with pytest.raises(AttributeError, match=f"`{name}` can't.*from_optimizer.*{value!r}"):
            setattr(optimizer, name, value)
    assert getattr(optimizer, name) == optimizer.get_config()[name] == given
    other = made_by.from_optimizer(optimizer, **{name: made_by().get_config()[name]})
    assert getattr(other, name) == getattr(made_by(), name)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has gradient_accumulation_steps")
def test_keras_s_own_accumulation_can_not_be_added():
    optimizer = hosts.ours("Adam", accum_iters=3)
    assert optimizer.gradient_accumulation_steps is None
    with pytest.raises(ValueError, match="set `accum_iters`.*gradient_accumulation_steps=3"):
        optimizer.gradient_accumulation_steps = 3
    assert optimizer.gradient_accumulation_steps is None


@keras2_has_no("LossScaleOptimizer")
def test_an_argument_that_is_assigned_to_a_loss_scale_optimizer():
    wrappers = keras.optimizers if hosts.IS_KERAS3 else keras.mixed_precision
    wrapper = wrappers.LossScaleOptimizer(hosts.ours("Adam", accum_iters=3))
    assert wrapper.gate == "select"
    with pytest.raises(AttributeError, match="`gate` can't be changed"):
        wrapper.gate = "conditional"


def test_accumulation_cannot_start_without_accumulators():
    model = compiled(dense_model(), hosts.ours("SGD"))
    model.optimizer.accum_iters = 1
    fit(model, 8)
    model.optimizer.accum_iters = 1
    with pytest.raises(ValueError, match="accum_iters.*5.*accum_iters=1"):
        model.optimizer.accum_iters = 5


def test_length_set_before_training():
    model = compiled(dense_model(), hosts.ours("SGD"))
    model.optimizer.accum_iters = 4
    fit(model, 2, epochs=1)
    assert model.optimizer.accum_iters == 4
    assert model.optimizer.completed_updates == len(data()[0]) / 8


def test_a_class_in_compile():
    """The message is Keras's, and the guide has it."""
    cls = hosts.accum.AdamAccumulate
    said = f"Could not interpret optimizer identifier: <class '{cls.__module__}.AdamAccumulate'>"
    with pytest.raises(ValueError, match=said):
        dense_model().compile(cls, "mse")


@pytest.mark.skipif(hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 knows the class by this name")
def test_a_name_in_compile():
    said = "Could not interpret optimizer identifier: Adam" if hosts.IS_KERAS3 else "Unknown optim"
    with pytest.raises(ValueError, match=said):
        dense_model().compile("AdamAccumulate", "mse")


# -- the same arguments under other names ------------------------------------------------------


def rate(value):
    return float(hosts.array(value))


@every_class
def test_lr_is_learning_rate(name):
    optimizer = hosts.ours(name, lr=0.5)
    assert rate(optimizer.lr) == rate(optimizer.learning_rate) == 0.5
    optimizer.lr = 0.25
    assert rate(optimizer.lr) == rate(optimizer.learning_rate) == 0.25
    optimizer.learning_rate = 0.125
    assert rate(optimizer.lr) == 0.125
    assert optimizer.get_config()[RATE] == 0.125


@every_class
def test_integer_learning_rate(name):
    """An integer is accepted where the stock class accepts it; as `lr` always, as in Keras 2."""
    cls = getattr(hosts.accum, f"{name}Accumulate")
    assert cls(lr=1).get_config()[RATE] == 1.0
    if not hosts.IS_KERAS3:
        assert cls(1).get_config()[RATE] == 1.0
        assert hosts.ours(name, learning_rate=1).get_config()[RATE] == 1.0
        return
    for way in ({"learning_rate": 5}, {"learning_rate": np.float32(5)}):
        with pytest.raises(ValueError) as stock:
            hosts.stock(name, **way)
        with pytest.raises(ValueError) as ours:
            hosts.ours(name, **way)
        assert str(ours.value) == str(stock.value)
    with pytest.raises(ValueError, match="`learning_rate` should be float"):
        cls(1)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has gradient_accumulation_steps")
@every_class
def test_keras_s_own_accumulation_is_pointed_out(name):
    with pytest.warns(UserWarning, match="is Keras's own .* accum_iters=5"):
        hosts.ours(name, gradient_accumulation_steps=5)


# -- configs -----------------------------------------------------------------------------------


def test_config_keeps_a_changed_length():
    optimizer = hosts.ours("Adam", accum_iters=2)
    model = compiled(dense_model(), optimizer)
    model.train_on_batch(*data())
    optimizer.accum_iters = 7
    assert optimizer.get_config()["accum_iters"] == 7
    assert slots(model)  # built, so the length is that of the state
