"""From a trained stock optimizer to ours and back; each continues where the other stopped."""


import hosts
import numpy as np
import pytest
import training
from cases import (
    CASES,
    keras2_has_no,
    needs_decay,
    on_adam_and_amsgrad,
    on_each_kind_of_state,
    quick_first,
)
from hosts import accum, keras
from training import BIG, LENGTH, MICRO, batches, compiled, dense_model

UPDATES = 3


def cls_of(case):
    return getattr(accum, f"{case.name}Accumulate")


def stocks(case, **more):
    """The stock optimizers that a class accepts: tf_keras has legacy and new-style ones."""
    found = [hosts.stock(case.name, **case.arguments, **more)]
    if hosts.IS_LEGACY:
        name, amsgrad = case.name, {}
        if name == "AMSGrad":
            name, amsgrad = "Adam", {"amsgrad": True}
        found.append(getattr(keras.optimizers, name)(**case.arguments, **more, **amsgrad))
    return found


def go_on(model, size, start, stop):
    """Train on the samples between big batches `start` and `stop`, and return the model."""
    for x, y in batches(size)[start * BIG // size : stop * BIG // size]:
        model.train_on_batch(x, y)
    return model


def trained(optimizer, **arguments):
    """Return a model after one big batch."""
    return go_on(compiled(dense_model(), optimizer, **arguments), BIG, 0, 1)


def with_optimizer(model, optimizer, **arguments):
    """Compile the same model again, keeping its weights."""
    values = model.get_weights()
    compiled(model, optimizer, **arguments)
    model.set_weights(values)
    return model


def assert_same_end(actual, expected, **tolerance):
    training.assert_equal(training.weights(actual), training.weights(expected), **tolerance)


# -- from stock --------------------------------------------------------------------------------


def assert_goes_on_from(case, optimizer):
    """After one big batch by the stock optimizer, ours trains on the rest in micro-batches."""
    twin = type(optimizer).from_config(optimizer.get_config())
    if hosts.IS_KERAS2:
        hosts.in_order(twin)
    model = trained(optimizer)
    before = [hosts.array(v) for v in hosts.stock_variables(optimizer)]
    mine = cls_of(case).from_optimizer(optimizer, accum_iters=LENGTH)
    assert (mine.completed_updates, mine.accum_iters, mine.window_position) == (1, LENGTH, 0)
    go_on(with_optimizer(model, mine), MICRO, 1, UPDATES)
    assert mine.completed_updates == UPDATES
    # Keras 2's new-style optimizers round some scalars to float32.
    is_legacy = type(optimizer) is type(hosts.stock(case.name))
    tolerance = {} if is_legacy else {"rtol": 0, "atol": 1e-6}
    assert_same_end(model, go_on(trained(twin), BIG, 1, UPDATES), **tolerance)
    for value, v in zip(before, hosts.stock_variables(optimizer)):
        np.testing.assert_array_equal(hosts.array(v), value)


@pytest.mark.parametrize("which", [0, 1] if hosts.IS_LEGACY else [0])
@on_each_kind_of_state
def test_from_stock(case, which):
    optimizer = stocks(case)[which]
    if which and case.name == "RMSprop" and "momentum" not in case.arguments:
        pytest.skip("tf_keras's two RMSprops differ: epsilon is inside the root in one only")
    if which and case.name == "Nadam":
        with pytest.raises(TypeError, match="must be of the stock class of NadamAccumulate"):
            cls_of(case).from_optimizer(optimizer)
        return
    assert_goes_on_from(case, optimizer)


GO_ALONG = [{"clipnorm": 0.05}, {"clipvalue": 0.02}]
if hosts.IS_KERAS2:
    GO_ALONG += [{"decay": 0.5}]
else:
    schedule = keras.optimizers.schedules.ExponentialDecay(2**-5, 1, 0.5)
    GO_ALONG += [{"learning_rate": schedule}, {"global_clipnorm": 0.05}]


@quick_first("more", {next(iter(more)): more for more in GO_ALONG})
def test_arguments_are_taken_over(more):
    case = CASES["adam"]._replace(arguments=more)
    for optimizer in stocks(case):
        assert_goes_on_from(case, optimizer)


def test_given_arguments_take_precedence():
    source = stocks(CASES["adam"])[-1]
    trained(source)
    mine = accum.AdamAccumulate.from_optimizer(source, learning_rate=0.5, clipnorm=1.0)
    assert float(hosts.array(mine.learning_rate)) == 0.5
    assert (mine.clipnorm, mine.accum_iters) == (1, 1)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's legacy optimizers have no weight decay")
def test_from_adamw_with_exclusions():
    def adamw():
        optimizer = keras.optimizers.AdamW(2**-5, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    source = adamw()
    model = trained(source)
    mine = accum.AdamAccumulate.from_optimizer(source, accum_iters=LENGTH)
    go_on(with_optimizer(model, mine), MICRO, 1, UPDATES)
    expected = go_on(trained(adamw()), BIG, 1, UPDATES)
    assert_same_end(model, expected)
    back = with_optimizer(model, mine.to_stock())
    assert_same_end(go_on(back, BIG, 0, 1), go_on(expected, BIG, 0, 1))


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2 has no accumulation of its own")
@on_adam_and_amsgrad
def test_from_keras_own_accumulation(case):
    """In the middle of a window, whose gradients are taken over."""
    theirs = hosts.stock(case.name, **case.arguments, gradient_accumulation_steps=LENGTH)
    model = compiled(dense_model(), theirs)
    half = LENGTH + 2
    for x, y in batches(MICRO)[:half]:
        model.train_on_batch(x, y)
    mine = cls_of(case).from_optimizer(theirs)
    assert (mine.accum_iters, mine.completed_updates, mine.window_position) == (LENGTH, 1, 2)
    with_optimizer(model, mine)
    for x, y in batches(MICRO)[half:]:
        model.train_on_batch(x, y)
    expected = compiled(dense_model(), hosts.stock(case.name, **case.arguments))
    assert_same_end(model, go_on(expected, BIG, 0, UPDATES))


def test_from_ours_with_another_length():
    model = trained(hosts.ours("Adam", accum_iters=2))
    state = model.optimizer.get_state()
    mine = accum.AdamAccumulate.from_optimizer(model.optimizer, accum_iters=5)
    hosts.build(with_optimizer(model, mine))
    new = mine.get_state()
    assert (int(new.pop("accum_iters")), int(state.pop("accum_iters"))) == (5, 2)
    for name in state:
        np.testing.assert_array_equal(new[name], state[name], err_msg=name)
    with pytest.raises(ValueError, match="1 micro-batches into a window.*apply_partial_window"):
        accum.AdamAccumulate.from_optimizer(model.optimizer, accum_iters=1)
    model.optimizer.apply_partial_window()
    assert accum.AdamAccumulate.from_optimizer(model.optimizer, accum_iters=1).accum_iters == 1


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="elsewhere variables are known by their places")
def test_from_ours_for_a_copy_of_the_model():
    """The window's sums belong to the variables of the first model: nothing is dropped."""
    model = go_on(compiled(dense_model(), hosts.ours("Adam", accum_iters=4)), MICRO, 0, 1)
    mine = type(model.optimizer).from_optimizer(model.optimizer)
    copy = compiled(keras.models.clone_model(model), mine)
    with pytest.raises(ValueError, match="are others.*For a copy of the model.*new.set_state"):
        copy.train_on_batch(*batches(MICRO)[0])
    new = hosts.ours("Adam", accum_iters=4)
    new.set_state(model.optimizer.get_state())
    copy.set_weights(model.get_weights())
    for each in (go_on(model, MICRO, 1, 2), go_on(with_optimizer(copy, new), MICRO, 1, 2)):
        assert each.optimizer.completed_updates > 0
    for one, other in zip(model.get_weights(), copy.get_weights()):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(
    not hosts.IS_LEGACY, reason="only tf_keras's legacy optimizers build variable by variable"
)
def test_from_stock_that_met_the_variables_in_another_order():
    """Without a compiled model nothing tells the right order, and slots could be swapped unseen."""
    vs = [hosts.variable(value, name) for name, value in training.START.items()]
    source = hosts.stock("Adam")
    hosts.apply(source, [hosts.array(v) for v in reversed(vs)], vs[::-1])
    mine = accum.AdamAccumulate.from_optimizer(source, accum_iters=2)
    with pytest.raises(ValueError, match="met its variables in another order.*optimizer.build"):
        mine.build(vs)
    mine.build(vs[::-1])
    state = mine.get_state()
    for i, v in enumerate(vs[::-1]):
        for name, slot in (("momentum", "m"), ("velocity", "v")):
            expected = hosts.array(source.get_slot(v, slot))
            np.testing.assert_array_equal(state[f"Adam.{name}.{i}"], expected)


def test_refused_sources():
    with pytest.raises(TypeError, match="of the stock class of AdamAccumulate.*Adam.*Received"):
        accum.AdamAccumulate.from_optimizer(hosts.stock("SGD"))
    if not hosts.IS_NEW_STYLE:
        with pytest.raises(ValueError, match="must have amsgrad=True.*Received: amsgrad=False"):
            accum.AMSGradAccumulate.from_optimizer(hosts.stock("Adam"))
    if not hosts.IS_KERAS2:
        with pytest.raises(TypeError, match="inner_optimizer"):
            accum.AdamAccumulate.from_optimizer(hosts.loss_scaled(hosts.stock("Adam"), 8.0))
    if hosts.IS_LEGACY:
        for argument in ({"weight_decay": 0.1}, {"use_ema": True}):
            with pytest.raises(ValueError, match="which legacy optimizers"):
                accum.AdamAccumulate.from_optimizer(keras.optimizers.Adam(**argument))


# -- to stock ----------------------------------------------------------------------------------


def ours_after(updates, case, **more):
    optimizer = hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **more})
    return go_on(compiled(dense_model(), optimizer), MICRO, 0, updates)


@on_each_kind_of_state
def test_to_stock(case):
    """It has the stock class itself and the same slots, and continues with big batches."""
    expected = go_on(compiled(dense_model(), hosts.stock(case.name, **case.arguments)), BIG, 0, 1)
    model = ours_after(1, case)
    optimizer = model.optimizer
    stock = optimizer.to_stock()
    assert type(stock) is type(hosts.stock(case.name))
    back = cls_of(case).from_optimizer(stock, accum_iters=LENGTH)
    if not hosts.IS_KERAS3:
        hosts.build_on(back, model.trainable_weights)
    state = optimizer.get_state()
    assert set(back.get_state()) == set(state)
    training.assert_equal(back.get_state(), state, rtol=0, atol=0)
    if hosts.IS_KERAS2:
        hosts.in_order(stock)
    go_on(with_optimizer(model, stock), BIG, 1, UPDATES)
    assert_same_end(model, go_on(expected, BIG, 1, UPDATES))
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 0)


@needs_decay
def test_decay_is_taken_over():
    case = CASES["sgd"]
    model = ours_after(1, case, decay=0.5)
    stock = model.optimizer.to_stock()
    if hosts.IS_KERAS2:
        hosts.in_order(stock)
    go_on(with_optimizer(model, stock), BIG, 1, UPDATES)
    expected = hosts.stock("SGD", **hosts.decayed(2**-3, 0.5, UPDATES))
    expected = go_on(compiled(dense_model(), expected), BIG, 0, UPDATES)
    # Keras 3's schedules compute in float32.
    tolerance = {"rtol": 0, "atol": 1e-7} if hosts.IS_KERAS3 else {}
    assert_same_end(model, expected, **tolerance)
    if hosts.IS_KERAS3:
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        with pytest.raises(ValueError, match="decay=0.5 and a schedule"):
            hosts.ours("SGD", learning_rate=schedule, decay=0.5).to_stock()


def test_to_stock_is_refused_in_an_open_window():
    model = ours_after(1, CASES["adam"])
    model.train_on_batch(*batches(MICRO)[0])
    with pytest.raises(ValueError, match="window_position=1.*apply_partial_window"):
        model.optimizer.to_stock()


@pytest.mark.skipif(
    hosts.IS_KERAS2, reason="on Keras 2 a stock optimizer waits for its variables as well"
)
def test_to_stock_is_refused_before_it_has_its_variables():
    optimizer = hosts.ours("Adam")
    optimizer.set_state(ours_after(1, CASES["adam"], accum_iters=1).optimizer.get_state())
    with pytest.raises(ValueError, match=r"optimizer\.build\(model\.trainable_variables\)"):
        optimizer.to_stock()
    assert type(hosts.ours("Adam").to_stock()) is type(hosts.stock("Adam"))


STEP = 'model.train_on_batch(data["x"], data["y"])'
if hosts.IS_KERAS2:  # Keras 2's stock steps aren't repeatable
    STEP = "assert int(model.optimizer.get_weights()[0]) == 1"


# -- accum_iters before the first step ---------------------------------------------------------


@keras2_has_no("accum_iters that can be set after loading: see test_keras2.py")
def test_accum_iters_may_exceed_1_until_the_first_step():
    """Built or loaded at accum_iters=1, and then set to more."""
    optimizer = hosts.ours("Adam", **CASES["adam"].arguments)
    model = compiled(dense_model(), optimizer)
    hosts.build(model)
    optimizer.accum_iters = LENGTH
    go_on(model, MICRO, 0, UPDATES)
    expected = compiled(dense_model(), hosts.stock("Adam", **CASES["adam"].arguments))
    assert_same_end(model, go_on(expected, BIG, 0, UPDATES))


def test_accum_iters_may_not_exceed_1_after_the_first_step():
    optimizer = hosts.ours("Adam")
    trained(optimizer)
    with pytest.raises(ValueError, match=r"can't become 5.*AdamAccumulate\.from_optimizer"):
        optimizer.accum_iters = 5
    optimizer.accum_iters = 1
