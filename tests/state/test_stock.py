"""From a trained stock optimizer to ours and back; each continues where the other stopped."""

import copy
import pickle

import cases
import hosts
import numpy as np
import pytest
import training
from cases import (
    ADAM,
    CASES,
    KINDS,
    SPECIAL,
    keras2_has_no,
    needs_decay,
    on_adam_and_amsgrad,
    quick_once_on_keras3,
)
from hosts import accum, keras
from training import BIG, LENGTH, MICRO, batches, compiled, dense_model

pytestmark = quick_once_on_keras3

UPDATES = 3
Adam = accum.AdamAccumulate


def cls_of(case):
    return getattr(accum, f"{case.name}Accumulate")


def train_windows(model, size, start, stop):
    """Train on the samples between big batches `start` and `stop`, and return the model."""
    return training.go_on(model, start * BIG // size, stop * BIG // size, batch_size=size)


def trained(optimizer):
    """Return a model after one big batch."""
    return train_windows(compiled(dense_model(), optimizer), BIG, 0, 1)


def with_optimizer(model, optimizer):
    """Compile the same model again, keeping its weights."""
    values = model.get_weights()
    compiled(model, optimizer)
    model.set_weights(values)
    return model


def ordered(stock):
    return hosts.in_order(stock) if hosts.IS_KERAS2 else stock


def assert_same_end(actual, expected, **tolerance):
    training.assert_equal(training.weights(actual), training.weights(expected), **tolerance)


# -- from stock --------------------------------------------------------------------------------

# Arguments that go along, in addition to the kinds of state.
FROM = {**KINDS, **SPECIAL}
ALONG = [{"clipnorm": 0.05}, {"clipvalue": 0.02}]
if hosts.IS_KERAS2:
    ALONG += [{"decay": 0.5}]
else:
    schedule = keras.optimizers.schedules.ExponentialDecay(2**-5, 1, 0.5)
    ALONG += [{"learning_rate": schedule}, {"global_clipnorm": 0.05}]
FROM.update({next(iter(more)): ADAM._replace(arguments=more) for more in ALONG})


@pytest.mark.parametrize("style", ["legacy", "new"] if hosts.IS_LEGACY else [""])
@cases.over(FROM, quick=["adam", "clipnorm"])
def test_from_stock(case, style):
    """After one big batch by the stock optimizer, ours trains on the rest in micro-batches."""
    optimizer, tolerance = hosts.stock(case.name, **case.arguments), {}
    if style == "new":
        name = "Adam" if case.name == "AMSGrad" else case.name
        amsgrad = {"amsgrad": True} if case.name == "AMSGrad" else {}
        optimizer = getattr(keras.optimizers, name)(**case.arguments, **amsgrad)
        tolerance = {"rtol": 0, "atol": 1e-6}  # it rounds some scalars to float32
        if name == "Nadam":
            with pytest.raises(TypeError, match="`NadamAccumulate.from_optimizer` needs"):
                cls_of(case).from_optimizer(optimizer)
            return
    twin = ordered(type(optimizer).from_config(optimizer.get_config()))
    model = trained(optimizer)
    before = [hosts.array(v) for v in hosts.stock_variables(optimizer)]
    mine = cls_of(case).from_optimizer(optimizer, accum_iters=LENGTH)
    assert (mine.completed_updates, mine.accum_iters, mine.window_position) == (1, LENGTH, 0)
    train_windows(with_optimizer(model, mine), MICRO, 1, UPDATES)
    assert mine.completed_updates == UPDATES
    assert_same_end(model, train_windows(trained(twin), BIG, 1, UPDATES), **tolerance)
    for value, v in zip(before, hosts.stock_variables(optimizer)):
        np.testing.assert_array_equal(hosts.array(v), value)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's legacy optimizers have no weight decay")
def test_from_adamw_with_exclusions():
    def adamw():
        optimizer = keras.optimizers.AdamW(2**-5, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    source = adamw()
    model = trained(source)
    mine = Adam.from_optimizer(source, accum_iters=LENGTH)
    train_windows(with_optimizer(model, mine), MICRO, 1, UPDATES)
    expected = train_windows(trained(adamw()), BIG, 1, UPDATES)
    assert_same_end(model, expected)
    mine = pickle.loads(pickle.dumps(mine))
    mine.build(model.trainable_variables)
    back = with_optimizer(model, mine.to_stock())
    assert_same_end(train_windows(back, BIG, 0, 1), train_windows(expected, BIG, 0, 1))


@pytest.mark.skipif(not hosts.HAS_EMA, reason="legacy optimizers have no weight decay")
@pytest.mark.parametrize("copied", [lambda o: pickle.loads(pickle.dumps(o)), copy.deepcopy])
@pytest.mark.parametrize("length", [1, 2])
def test_a_copy_excludes_the_same_weights_of_another_model(copied, length):
    """A list of variables in `exclude_from_weight_decay` is a list of their ids."""

    def weights_of(name):
        return [hosts.variable([1.0, 2.0], f"{name}{i}") for i in range(3)]

    first, second = weights_of("first"), weights_of("second")
    optimizer = hosts.accum.accumulating(keras.optimizers.AdamW)(0.5, accum_iters=length)
    optimizer.exclude_from_weight_decay(var_list=first[1:2])
    with pytest.raises(ValueError, match="before the optimizer has its variables.*`var_names`"):
        copied(optimizer)
    optimizer.build(first)
    second_optimizer = copied(copied(optimizer))
    second_optimizer.build(second)
    for each, variables in ((optimizer, first), (second_optimizer, second)):
        assert [each._use_weight_decay(v) for v in variables] == [True, False, True]
    back = copied(second_optimizer)
    back.build(first)
    assert [back._use_weight_decay(v) for v in first] == [True, False, True]


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2 has no accumulation of its own")
@on_adam_and_amsgrad
def test_from_keras_own_accumulation(case):
    """In the middle of a window, whose gradients are taken over."""
    theirs = hosts.stock(case.name, **case.arguments, gradient_accumulation_steps=LENGTH)
    model = training.go_on(compiled(dense_model(), theirs), 0, LENGTH + 2)
    mine = cls_of(case).from_optimizer(theirs)
    assert (mine.accum_iters, mine.completed_updates, mine.window_position) == (LENGTH, 1, 2)
    with pytest.raises(accum.StateError, match="2 micro-batches into a window"):
        cls_of(case).from_optimizer(theirs, accum_iters=1)
    training.go_on(with_optimizer(model, mine), LENGTH + 2)
    expected = compiled(dense_model(), hosts.stock(case.name, **case.arguments))
    assert_same_end(model, train_windows(expected, BIG, 0, UPDATES))


def test_from_ours_with_other_arguments():
    model = trained(hosts.ours("Adam", accum_iters=2))
    state = model.optimizer.get_state()
    mine = Adam.from_optimizer(model.optimizer, accum_iters=5, learning_rate=0.5, clipnorm=1.0)
    hosts.build(with_optimizer(model, mine))
    assert (mine.clipnorm, mine.accum_iters) == (1, 5)
    training.assert_equal(mine.get_state(), {**state, "learning_rate": 0.5}, rtol=0, atol=0)
    with pytest.raises(accum.StateError, match="1 micro-batches into .*apply_partial_window"):
        Adam.from_optimizer(mine, accum_iters=1)
    mine.apply_partial_window()
    assert Adam.from_optimizer(mine, accum_iters=1).accum_iters == 1


@pytest.mark.skipif(hosts.IS_KERAS2, reason="where each model has slots and a window of its own")
@pytest.mark.parametrize("accum_iters", [1, 4])
def test_from_ours_for_a_copy_of_the_model(accum_iters):
    """The window's sums belong to the variables of the first model: nothing leaks or is dropped."""
    model = trained(hosts.ours("Adam", accum_iters=accum_iters, reduction="mean"))
    mine = type(model.optimizer).from_optimizer(model.optimizer)
    settings = {"run_eagerly": True} if hosts.IS_NEW_STYLE else {}  # whose error has no other type
    copy = compiled(keras.models.clone_model(model), mine, **settings)
    if hosts.IS_LEGACY and accum_iters == 1:  # slots for the others are made, as in stock
        control = trained(hosts.stock("Adam"))
        same = compiled(keras.models.clone_model(control), control.optimizer)
        for _ in range(2):
            for each in (copy, same):
                each.train_on_batch(*batches(MICRO)[0])
        assert_same_end(copy, same)
        assert mine.completed_updates == 3
        return
    says = "are others.*a copy of the model.*new.set_state|Unknown var|built for other weights"
    if hosts.IS_NEW_STYLE:
        says += "|cannot recognize variable"  # the stock optimizer's
    for train in (copy.fit, copy.train_on_batch):
        with pytest.raises((ValueError, KeyError), match=says):
            train(*batches(MICRO)[0])
    with_optimizer(model, mine).train_on_batch(*batches(MICRO)[0])


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="elsewhere an optimizer lists all variables")
@pytest.mark.parametrize("freeze", [False, True])
def test_from_stock_that_has_met_other_variables(freeze):
    """Layers that go on keep their moments, and new ones begin, as in legacy stock optimizers."""
    layers = [keras.layers.Dense(3, name=name) for name in "ab"] + [keras.layers.Dense(2, name="c")]
    model = hosts.sequential((3,), layers)
    layers[0].trainable = False
    train_windows(compiled(model, hosts.stock("Adam")), BIG, 0, 1)
    source = model.optimizer
    kept = {v.name: stock_slots(source, v) for v in model.trainable_variables}
    layers[0].trainable, layers[1].trainable = True, not freeze
    mine = Adam.from_optimizer(source, accum_iters=LENGTH)
    with_optimizer(model, mine)
    hosts.build(model)
    state = mine.get_state()
    for i, v in enumerate(model.trainable_variables):
        slots = kept.get(v.name, [np.zeros(v.shape)] * 2)
        for name, expected in zip(("momentum", "velocity"), slots):
            np.testing.assert_array_equal(state[f"Adam.{name}.{i}"], expected)
    assert mine.completed_updates == 1
    if hosts.IS_LEGACY:  # the newer style's stock optimizers refuse new variables
        start = model.get_weights()
        train_windows(model, MICRO, 1, UPDATES)
        control = with_optimizer(model, source)
        ours = model.get_weights()
        model.set_weights(start)
        train_windows(control, BIG, 1, UPDATES)
        for value, expected in zip(ours, model.get_weights()):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-11)


def stock_slots(optimizer, variable):
    """Adam's momentum and velocity of a variable."""
    if hosts.IS_LEGACY:
        return [hosts.array(optimizer.get_slot(variable, name)) for name in "mv"]
    index = optimizer._index_dict[optimizer._var_key(variable)]
    slots = optimizer._momentums[index], optimizer._velocities[index]
    return list(map(hosts.array, slots))


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="others build all variables at once")
def test_from_stock_that_met_the_variables_in_another_order():
    """The slots of each variable stay its own, also in copies that are made before `build`."""
    vs = training.linear_variables()
    source = hosts.stock("Adam")
    hosts.apply(source, [hosts.array(v) for v in reversed(vs)], vs[::-1])
    mine = Adam.from_optimizer(source, accum_iters=2)
    again, pickled = Adam.from_optimizer(mine), pickle.loads(pickle.dumps(mine))
    for optimizer in (mine, again, pickled):
        optimizer.build(vs)
        state = optimizer.get_state()
        for i, v in enumerate(vs):
            for name, expected in zip(("momentum", "velocity"), stock_slots(source, v)):
                np.testing.assert_array_equal(state[f"Adam.{name}.{i}"], expected)


def test_refused_sources():
    for other in (hosts.stock("SGD"), hosts.ours("SGD")):
        said = "`AdamAccumulate.from_optimizer` needs.*Adam.*Use `SGDAccumulate.from_optimizer`"
        with pytest.raises(TypeError, match=said):
            Adam.from_optimizer(other)
    # No class that this Keras lacks is named, nor Keras's own for somebody else's class.
    others = [type("Adam", (hosts.optimizers.Optimizer,), {})] if hosts.IS_KERAS3 else []
    others += [hosts.optimizers.Nadam] if hosts.IS_KERAS2 else []
    for other in others:
        with pytest.raises(TypeError, match=r"with the same rule\. Received"):
            accum.SGDAccumulate.from_optimizer(other(0.1))
    if not hosts.IS_NEW_STYLE:
        with pytest.raises(ValueError, match="must have amsgrad=True.*Received: amsgrad=False"):
            accum.AMSGradAccumulate.from_optimizer(hosts.stock("Adam"))
    if not hosts.IS_KERAS2:
        with pytest.raises(TypeError, match="inner_optimizer"):
            Adam.from_optimizer(hosts.loss_scaled(hosts.stock("Adam"), 8.0))
    if hosts.IS_LEGACY:
        for argument in ({"weight_decay": 0.1}, {"use_ema": True}):
            with pytest.raises(ValueError, match="which legacy optimizers"):
                Adam.from_optimizer(keras.optimizers.Adam(**argument))


# -- to stock ----------------------------------------------------------------------------------


def ours_after_one_update(case, **more):
    optimizer = hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **more})
    return train_windows(compiled(dense_model(), optimizer), MICRO, 0, 1)


@keras2_has_no("to_stock")
@cases.on_each_kind_of_state
def test_to_stock(case):
    """It has the stock class itself and the same slots, and continues with big batches."""
    model = ours_after_one_update(case)
    optimizer = model.optimizer
    stock = optimizer.to_stock()
    assert type(stock) is type(hosts.stock(case.name))
    back = cls_of(case).from_optimizer(stock, accum_iters=LENGTH)
    if not hosts.IS_KERAS3:
        hosts.build_on(back, model.trainable_weights)
    state = optimizer.get_state()
    assert set(back.get_state()) == set(state)
    training.assert_equal(back.get_state(), state, rtol=0, atol=0)
    train_windows(with_optimizer(model, stock), BIG, 1, UPDATES)
    expected = compiled(dense_model(), hosts.stock(case.name, **case.arguments))
    assert_same_end(model, train_windows(expected, BIG, 0, UPDATES))
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 0)


@needs_decay
@keras2_has_no("to_stock")
def test_decay_is_taken_over():
    model = ours_after_one_update(CASES["sgd"], decay=0.5)
    train_windows(with_optimizer(model, model.optimizer.to_stock()), BIG, 1, UPDATES)
    expected = hosts.stock("SGD", **hosts.decayed(2**-3, 0.5, UPDATES))
    expected = train_windows(compiled(dense_model(), expected), BIG, 0, UPDATES)
    # Keras 3's schedules compute in float32.
    tolerance = {"rtol": 0, "atol": 1e-7} if hosts.IS_KERAS3 else {}
    assert_same_end(model, expected, **tolerance)
    if hosts.IS_KERAS3:
        with pytest.raises(ValueError, match="decay=0.5 and a schedule"):
            hosts.ours("SGD", learning_rate=schedule, decay=0.5).to_stock()


def test_to_stock_is_refused_where_it_would_lose_something():
    model = ours_after_one_update(ADAM)
    if hosts.IS_KERAS2:
        with pytest.raises(NotImplementedError, match="load it with tf_keras"):
            model.optimizer.to_stock()
        return
    waiting = hosts.ours("Adam", accum_iters=LENGTH)
    waiting.set_state(model.optimizer.get_state())
    model.train_on_batch(*batches(MICRO)[0])
    with pytest.raises(ValueError, match="window_position=1.*apply_partial_window"):
        model.optimizer.to_stock()
    with pytest.raises(ValueError, match=r"optimizer\.build\(model\.trainable_variables\)"):
        waiting.to_stock()
    assert type(hosts.ours("Adam").to_stock()) is type(hosts.stock("Adam"))


def test_accum_iters_1_cannot_be_raised():
    optimizer = hosts.ours("Adam")
    said = r"constructed with accum_iters=1.*AdamAccumulate\.from_optimizer.*accum_iters=5"
    with pytest.raises(AttributeError, match=said):
        optimizer.accum_iters = 5
    optimizer.accum_iters = 1
