"""The promises of a window at each micro-batch: nothing moves inside, and every gradient counts."""

import hosts
import numpy as np
import pytest
import training
from cases import ADAM, CASES, on_adam, on_adam_and_amsgrad, on_each_rule
from hosts import keras
from training import BIG, LENGTH, MICRO, assert_equal, assert_moved, batches, go_on, state, weights

BITWISE = {"rtol": 0, "atol": 0}


def models(case, **compile):
    """Two equal models, one compiled with our optimizer and one with the stock optimizer."""
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    stock = hosts.stock(case.name, **case.arguments)
    return [training.compiled(training.dense_model(), o, **compile) for o in (ours, stock)]


@pytest.mark.usefixtures("every_gate")
@on_adam_and_amsgrad
def test_a_bad_micro_batch_spoils_its_own_window_only(case):
    """Inside a window nothing moves, to the bit; a NaN or an infinity shows at its end."""
    model, reference = models(case)
    first, second, third = batches(BIG)
    go_on(model, arrays=first)
    reference.train_on_batch(*first)

    intact = state(model)
    for i, (x, y) in enumerate(batches(MICRO, second)):
        assert_equal(state(model), intact, **BITWISE)
        model.train_on_batch(x, np.full_like(y, [0, np.inf, np.nan, 0][i]))
    # The big batch's weights would be spoiled as well.
    assert any(not np.isfinite(w).all() for w in weights(model).values())
    for accumulator in hosts.accumulators(model.optimizer):
        assert not hosts.array(accumulator).any()

    training.set_state(model, intact)
    go_on(model, arrays=third)
    reference.train_on_batch(*third)
    assert_moved(intact, weights(model), by=1e-3)
    assert_equal(state(model), state(reference))


@on_adam
def test_a_new_accum_iters_takes_effect_at_the_next_window(case):
    """Without a new trace: `accum_iters` is a variable."""
    traces, counts = [], set()

    def loss(y, p):
        traces.append(y)  # in eager execution, of each call
        return (y - p) ** 2

    class Shorten(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            assert self.model.optimizer.accum_iters == (2 if batch else LENGTH)
            self.model.optimizer.accum_iters = 2
            counts.add(len(traces))

    model, reference = models(case, loss=loss)
    start = weights(model)
    training.fit(model, MICRO, epochs=1, callbacks=[Shorten()])
    assert len(counts) == 1 or hosts.IS_TORCH

    x, y = training.data()
    reference.train_on_batch(x[:BIG], y[:BIG])
    go_on(reference, arrays=(x[BIG:], y[BIG:]), batch_size=2 * MICRO)
    assert_moved(start, weights(model))
    assert_equal(state(model), state(reference))


@pytest.mark.skipif(not hosts.IS_TENSORFLOW or hosts.IS_KERAS2, reason="about TensorFlow 2")
def test_the_step_of_an_optimizer_that_is_built_is_traced_once():
    """Ours makes no variables in a step, after which TensorFlow would trace it again."""
    traces = []

    def loss(y, p):
        traces.append(y)
        return (y - p) ** 2

    model = training.compiled(training.dense_model(), training.in_windows(ADAM), loss)
    model.optimizer.build(model.trainable_variables)
    training.fit(model, MICRO)
    assert len(traces) == 1


def test_callback_needs_our_optimizer():
    model = training.compiled(training.dense_model(), "sgd")
    with pytest.raises(TypeError, match="ApplyPartialWindow needs .* keras_accum, .* Received"):
        model.fit(*training.data(), callbacks=[hosts.accum.ApplyPartialWindow()], verbose=0)


# -- given gradients, also in other float types ----------------------------------------------------

# float16 sums and averages these without rounding, so only the rules are compared.
EIGHTHS = np.random.default_rng(5).integers(1, 8, (9, LENGTH, 2)) / 8
INFINITE = np.array([[[1, -2], [np.inf, 0.5], [1, 3], [1, -np.inf]], [[0.5, -1.0]] * LENGTH])
# The float type, the micro-batches of windows, arguments, and the rounding of the rule.
GIVEN = {
    # clipvalue makes the infinite gradient a large one, as it does with the big batch's.
    "infinite": (hosts.FLOATX, INFINITE, {"clipvalue": 0.75}, {}),
    # The default epsilon is 0 in float16.
    "float16": ("float16", EIGHTHS, {"epsilon": 2**-10}, {"rtol": 4e-3, "atol": 4e-3}),
    "float32": ("float32", EIGHTHS, {"epsilon": 2**-10}, {"rtol": 1e-5, "atol": 1e-5}),
}


@pytest.mark.usefixtures("every_gate")
@on_each_rule
@pytest.mark.parametrize("floatx, windows, arguments, tolerance", GIVEN.values(), ids=GIVEN)
def test_given_gradients(case, floatx, windows, arguments, tolerance):
    """Of other data types, and bad ones, which clipping treats as it treats the big batch's."""
    assert_equal_to_averages(case, floatx, windows, arguments, tolerance)


def assert_equal_to_averages(case, floatx, windows, arguments, tolerance):
    """The given windows are as their averages are to a stock optimizer, and all of it is finite."""
    if case.name == "SGD":
        arguments = {name: value for name, value in arguments.items() if name != "epsilon"}
    arguments = {**case.arguments, **arguments}
    hosts.set_floatx(floatx)

    def run(optimizer, steps):
        w = hosts.variable([1.0, -2.0], "w", floatx)
        for gradient in steps:
            hosts.apply(optimizer, [gradient.astype(floatx)], [w])
        found = {"w": w, **hosts.slots(optimizer, [w])}
        return {name: hosts.array(v) for name, v in found.items()}

    expected = run(hosts.stock(case.name, **arguments), windows.mean(axis=1))
    ours = hosts.ours(case.name, accum_iters=LENGTH, **arguments)
    actual = run(ours, windows.reshape(-1, 2))
    assert expected["w"].dtype == actual["w"].dtype == floatx
    assert np.isfinite(expected["w"]).all() and np.isfinite(actual["w"]).all()
    assert_moved({"w": [1, -2]}, {"w": expected["w"]}, by=1e-3)
    assert_equal(actual, expected, **tolerance)
    if floatx == "float16":
        (accumulator,) = hosts.accumulators(ours)
        assert hosts.array(accumulator).dtype == "float32"


@pytest.mark.parametrize("name", ["sgd", "momentum"])  # other rules square the gradient
def test_half_precision_sum_does_not_overflow(name):
    """The sum of four gradients of 30000 exceeds float16. Some processors round in each step."""
    windows, one_place = np.full((1, LENGTH, 2), 30000), {"rtol": 2**-10, "atol": 0}
    assert windows.sum(axis=1).min() > np.finfo("float16").max
    rate = {"learning_rate": 2**-14}
    assert_equal_to_averages(CASES[name], "float16", windows, rate, one_place)
