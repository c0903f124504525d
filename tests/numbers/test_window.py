"""The promises of a window at each micro-batch: nothing moves inside, and every gradient counts."""

import hosts
import numpy as np
import pytest
from cases import (
    CASES,
    on_adam_and_amsgrad,
    on_each_rule,
    quick_first,
)
from training import (
    BIG,
    LENGTH,
    MICRO,
    Shrink,
    assert_equal,
    assert_moved,
    batches,
    compiled,
    data,
    dense_model,
    go_on,
    set_state,
    state,
    weights,
)

pytestmark = pytest.mark.usefixtures("every_gate")

BITWISE = {"rtol": 0, "atol": 0}


def models(case, ours=None, stock=None, build=dense_model, **compile):
    """Two equal models, one compiled with our optimizer and one with the stock optimizer."""
    ours = hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **(ours or {})})
    stock = hosts.stock(case.name, **{**case.arguments, **(stock or {})})
    return compiled(build(), ours, **compile), compiled(build(), stock)


def stock_model():
    return compiled(dense_model(), "sgd")


def everything(case):
    """Options that act on an update, as arguments of ours and of the stock optimizer."""
    both = {"clipnorm": 0.3}
    if hosts.HAS_EMA:
        both.update(weight_decay=0.2, use_ema=True, ema_momentum=0.6, ema_overwrite_frequency=2)
    decayed = hosts.decayed(case.arguments["learning_rate"], 0.25, updates=9)
    return {**hosts.our_decay(0.25), **both}, {**both, **decayed}


# -- nothing moves inside a window -----------------------------------------------------------------


@on_adam_and_amsgrad
@quick_first("options", ["everything", "plain"])
def test_only_the_end_of_a_window_moves_anything(case, options):
    if options == "plain":
        ours, model, reference = None, *models(case)
    else:
        ours, stock = everything(case)
        # With XLA where the host has it, since XLA is free to rewrite arithmetic.
        xla = {} if hosts.IS_TORCH or hosts.IS_KERAS2 else {"jit_compile": True}
        build = lambda: dense_model(kernel_constraint=Shrink())  # noqa: E731
        model, reference = models(case, ours, stock, build, **xla)
    optimizer = model.optimizer

    for updates, (x, y) in enumerate(batches(BIG)):
        start = state(model)
        for position, (xs, ys) in enumerate(batches(MICRO, (x, y))):
            assert (optimizer.window_position, optimizer.completed_updates) == (position, updates)
            assert_equal(state(model), start, **BITWISE) if position else None
            model.train_on_batch(xs, ys)
        assert (optimizer.window_position, optimizer.completed_updates) == (0, updates + 1)
        reference.train_on_batch(x, y)
        assert_moved(start, weights(model), by=1e-3)
        assert_equal(state(model), state(reference))


@on_adam_and_amsgrad
@quick_first("bad", [np.inf, np.nan])
def test_a_bad_micro_batch_spoils_its_own_window_only(case, bad):
    model, reference = models(case)
    first, second, third = batches(BIG)
    go_on(model, arrays=first)
    reference.train_on_batch(*first)

    intact = state(model)
    for i, (x, y) in enumerate(batches(MICRO, second)):
        assert_equal(state(model), intact, **BITWISE)
        model.train_on_batch(x, np.full_like(y, bad) if i == 1 else y)
    # The big batch's weights would be spoiled as well.
    assert any(not np.isfinite(w).all() for w in weights(model).values())
    for accumulator in hosts.accumulators(model.optimizer):
        assert not hosts.array(accumulator).any()

    set_state(model, intact)
    go_on(model, arrays=third)
    reference.train_on_batch(*third)
    assert_moved(intact, weights(model), by=1e-3)
    assert_equal(state(model), state(reference))


@on_each_rule
def test_a_clipped_infinite_gradient_is_a_large_one(case):
    """clipvalue makes it finite, as it does with the big batch's gradient."""
    gradients = np.array([[1, -2], [np.inf, 0.5], [1, 3], [1, -np.inf], *[[0.5, -1.0]] * 4])

    def run(optimizer, steps):
        w = hosts.variable([1.0, 2.0], "w")
        for gradient in steps:
            hosts.apply(optimizer, [gradient.astype(hosts.FLOATX)], [w])
        found = {name: hosts.array(v) for name, v in hosts.slots(optimizer, [w]).items()}
        return {"w": hosts.array(w), **found}

    arguments = {**case.arguments, "clipvalue": 0.75}
    expected = run(hosts.stock(case.name, **arguments), gradients.reshape(2, 4, 2).mean(axis=1))
    ours = hosts.ours(case.name, accum_iters=LENGTH, **arguments)
    assert np.isfinite(expected["w"]).all()
    assert_moved({"w": [1, 2]}, {"w": expected["w"]}, by=1e-3)
    assert_equal(run(ours, gradients), expected)


@on_adam_and_amsgrad
@quick_first("length", [LENGTH, 1])
def test_skip_nonfinite(case, length):
    """A bad micro-batch leaves no trace, also at the start or the end of a window."""
    model, reference = models(case, {"accum_iters": length, "skip_nonfinite": True})
    for i, (x, y) in enumerate(batches(MICRO)):
        for bad in (np.inf, np.nan)[: i % 3]:
            before = model.optimizer.window_position, model.optimizer.completed_updates
            weights_before = state(model)
            model.train_on_batch(x, np.full_like(y, bad))
            assert_equal(state(model), weights_before, **BITWISE)
            after = model.optimizer.window_position, model.optimizer.completed_updates
            assert after == before
        model.train_on_batch(x, y)
    start = weights(reference)
    go_on(reference, batch_size=length * MICRO)
    assert_moved(start, weights(reference))
    assert_equal(state(model), state(reference))


# -- the length of a window --------------------------------------------------------------------


class Counting:
    """A loss that counts its traces. In eager execution it counts its calls."""

    def __init__(self):
        self.traces = 0

    def __call__(self, y, p, **weights):  # Keras 2.3 passes weights to a loss that isn't a function
        self.traces += 1
        return (y - p) ** 2


@on_adam_and_amsgrad
def test_a_new_accum_iters_takes_effect_at_the_next_window(case):
    loss = Counting()
    model, reference = models(case, loss=loss)
    start = weights(model)
    for i, (x, y) in enumerate(batches(MICRO)):
        if i == 1:
            model.optimizer.accum_iters = 2
            traces = loss.traces
            assert traces > 0
        assert model.optimizer.accum_iters == (LENGTH if i == 0 else 2)
        model.train_on_batch(x, y)
    if not hosts.IS_TORCH:
        assert loss.traces == traces, "the train step was traced again"

    x, y = data()
    reference.train_on_batch(x[:BIG], y[:BIG])
    go_on(reference, arrays=(x[BIG:], y[BIG:]), batch_size=2 * MICRO)
    assert model.optimizer.completed_updates == hosts.array(reference.optimizer.iterations)
    assert_moved(start, weights(model))
    assert_equal(state(model), state(reference))


# -- windows that are not full -----------------------------------------------------------------


@on_adam_and_amsgrad
@quick_first("reduction", ["mean", "sum"])
def test_partial_window(case, reduction):
    """A window of four, closed after three, equals the big batch of three.

    Then windows are full again.
    """
    three, rest = 3 * MICRO, 3 * MICRO + BIG
    x, y = data()
    model, _ = models(case, {"reduction": reduction})
    reference = compiled(dense_model(), hosts.stock(case.name, **case.arguments))
    start = weights(model)

    model.optimizer.apply_partial_window()  # no variables and no open window yet
    go_on(model, arrays=(x[:three], y[:three]))
    assert_equal(weights(model), start, **BITWISE)
    model.optimizer.apply_partial_window()
    assert (model.optimizer.window_position, model.optimizer.completed_updates) == (0, 1)
    applied = state(model)
    model.optimizer.apply_partial_window()  # no window is open
    assert_equal(state(model), applied, **BITWISE)
    go_on(model, arrays=(x[three:rest], y[three:rest]))
    assert (model.optimizer.window_position, model.optimizer.completed_updates) == (0, 2)

    # For reduction="sum" the stock gradient is multiplied by the number of micro-batches.
    for samples, times in ((slice(three), 3), (slice(three, rest), LENGTH)):
        factor = np.full(len(x[samples]), times if reduction == "sum" else 1)
        reference.train_on_batch(x[samples], y[samples], sample_weight=factor)
    assert_moved(start, weights(model), by=1e-3)
    assert_equal(state(model), state(reference))


def test_callback_needs_our_optimizer():
    model = stock_model()
    with pytest.raises(TypeError, match="ApplyPartialWindow needs .* keras_accum. Received"):
        model.fit(*data(), callbacks=[hosts.accum.ApplyPartialWindow()], verbose=0)


# -- half precision ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov"])  # other rules square the gradient
def test_half_precision_sum_does_not_overflow(name):
    """The sum of four gradients of 30000 exceeds float16."""
    if hosts.IS_KERAS2:  # Keras 2's stock optimizers have the type of the weights
        hosts.set_floatx("float16")

    def run(optimizer, steps):
        w = hosts.variable([1.0], "w", "float16")
        for _ in range(steps):
            hosts.apply(optimizer, [np.array([30000], "float16")], [w])
        return {"w": hosts.array(w)}

    case = CASES[name]
    arguments = {**case.arguments, "learning_rate": 2**-14}
    ours = hosts.ours(case.name, accum_iters=LENGTH, **arguments)
    expected = run(hosts.stock(case.name, **arguments), 1)
    actual = run(ours, LENGTH)
    assert_moved({"w": [1.0]}, expected, by=1)
    # Equal to the last place of a float16: some processors round after each operation, others when
    # a result is stored.
    assert_equal(actual, expected, rtol=np.finfo("float16").eps, atol=0)
    (accumulator,) = hosts.accumulators(ours)
    assert hosts.array(accumulator).dtype == "float32"
