"""LENGTH micro-batches per update train like the stock optimizer on big batches.

Each test checks one promise on rows of the table of optimizers. Both sides compile and fit a real
model, and all weights and all slots are compared.
"""

import importlib

import hosts
import numpy as np
import pytest
from cases import (
    CASES,
    keras2_has_no,
    needs_decay,
    on_adam,
    on_adam_and_amsgrad,
    on_each_kind_of_state,
    on_each_rule,
    on_every_optimizer,
    quick_first,
    thorough,
)
from hosts import keras
from training import (
    BIG,
    LENGTH,
    MICRO,
    UPDATES,
    WINDOWS,
    DenseEmbedding,
    Shrink,
    assert_equal,
    assert_equals_big_batch,
    assert_moved,
    assert_same_training,
    batches,
    big_batch,
    compiled,
    data,
    dense_model,
    embedding_model,
    slots,
    train,
    weights,
)

pytestmark = pytest.mark.usefixtures("every_gate")

schedules = getattr(keras.optimizers, "schedules", None)
callbacks = keras.callbacks

keras3_only = pytest.mark.skipif(
    not hosts.IS_KERAS3,
    reason="Keras 2's optimizers have no loss_scale_factor or float8",
)
needs_ema = pytest.mark.skipif(
    not hosts.HAS_EMA, reason="this style of optimizers has no weight_decay and no use_ema"
)


@pytest.mark.all_gates
@on_every_optimizer
def test_plain(case):
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    assert_same_training(train(ours, MICRO), big_batch(case))


# -- learning rate -----------------------------------------------------------------------------

SCHEDULES = {
    "exponential": lambda rate: schedules.ExponentialDecay(rate, 2, 0.7),
    "piecewise": lambda rate: schedules.PiecewiseConstantDecay([1, 3], [rate, rate / 2, rate / 4]),
}


@keras2_has_no("schedules")
@on_adam_and_amsgrad
@quick_first("schedule", SCHEDULES)
def test_schedule_counts_updates(case, schedule):
    assert_equals_big_batch(case, both={"learning_rate": schedule(case.arguments["learning_rate"])})


@needs_decay
@on_adam_and_amsgrad
def test_decay_counts_updates(case):
    stock = hosts.decayed(case.arguments["learning_rate"], 0.25, UPDATES)
    assert_equals_big_batch(case, ours={"decay": 0.25}, stock=stock)


def halve_each_epoch():
    return [callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]


def halve_on_plateau():
    # No loss falls by 100, so the second epoch is a plateau, and the third runs at half the rate.
    return [callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=100)]


RATE_CALLBACKS = {
    "LearningRateScheduler": (halve_each_epoch, [1 / 2, 1 / 4, 1 / 8]),
    "ReduceLROnPlateau": (halve_on_plateau, [1, 1, 1 / 2]),
}


@on_adam_and_amsgrad
@quick_first("make", [halve_each_epoch, halve_on_plateau])
def test_callback_sets_learning_rate(case, make):
    assert_equals_big_batch(case, callbacks=make)


@keras2_has_no("schedules to compare with")
@needs_decay
@on_adam
@quick_first("make, factors", RATE_CALLBACKS)
def test_callback_sees_the_undecayed_rate(case, make, factors):
    rate, decay = case.arguments["learning_rate"], 0.25
    # The reference gets the rate of each single update.
    rates = [rate * factors[update // WINDOWS] / (1 + decay * update) for update in range(UPDATES)]
    arguments = {**case.arguments, "learning_rate": hosts.EachUpdate(rates)}
    stock = hosts.stock(case.name, **arguments)
    ours = hosts.ours(case.name, accum_iters=LENGTH, decay=decay, **case.arguments)
    actual = train(ours, MICRO, callbacks=make())
    assert_same_training(actual, train(stock, BIG))
    assert float(hosts.array(ours.lr)) < rate, "the callback didn't change the rate"


# -- what happens once per update --------------------------------------------------------------

CLIPPING = {"clipnorm": 0.3, "clipvalue": 0.1, "global_clipnorm": 0.5}
if hosts.IS_KERAS2:
    del CLIPPING["global_clipnorm"]  # Keras 2's clipnorm is global already


@on_adam_and_amsgrad
@quick_first("clipping", list(CLIPPING))
def test_clipping_acts_on_the_average(case, clipping):
    assert_equals_big_batch(case, both={clipping: CLIPPING[clipping]})


@needs_ema
@on_adam_and_amsgrad
def test_weight_decay(case):
    assert_equals_big_batch(case, both={"weight_decay": 0.2})


@needs_ema
@on_adam
@quick_first("by", ["name", "variable"])
def test_weight_decay_with_exclusion(case, by):
    def trained(make, batch_size, **arguments):
        model = dense_model()
        optimizer = make(case.name, weight_decay=0.5, **case.arguments, **arguments)
        names = {"var_names": ["bias"]}
        variables = {"var_list": [layer.kernel for layer in model.layers]}
        optimizer.exclude_from_weight_decay(**(names if by == "name" else variables))
        return train(optimizer, batch_size, lambda: model)

    actual = trained(hosts.ours, MICRO, accum_iters=LENGTH)
    assert_same_training(actual, trained(hosts.stock, BIG))


EMA = {
    "ema_overwrite": {"use_ema": True, "ema_momentum": 0.6, "ema_overwrite_frequency": 4},
    "ema": {"use_ema": True, "ema_momentum": 0.6},
}


@needs_ema
@on_adam_and_amsgrad
@quick_first("ema", EMA)
def test_moving_average_of_weights(case, ema):
    assert_equals_big_batch(case, both=ema)


CONSTRAINTS = {"shrink": Shrink, "max_norm": lambda: keras.constraints.MaxNorm(0.5)}


@on_adam_and_amsgrad
@quick_first("constraint", CONSTRAINTS)
def test_constraint(case, constraint):
    assert_equals_big_batch(
        case,
        build=lambda: dense_model(kernel_constraint=constraint(), bias_constraint=constraint()),
    )


@needs_ema
@on_adam
def test_several_features_at_once(case):
    assert_equals_big_batch(
        case,
        both={"weight_decay": 0.2, "clipnorm": 0.3, **EMA["ema_overwrite"]},
        ours=hosts.our_decay(0.25),
        stock=hosts.decayed(case.arguments["learning_rate"], 0.25, UPDATES),
        build=lambda: dense_model(kernel_constraint=Shrink()),
    )


@on_adam
def test_regularizer(case):
    # A term of each micro-batch's loss, so the averaged gradient contains it exactly once.
    regularizer = keras.regularizers.l2(0.1)
    assert_equals_big_batch(case, build=lambda: dense_model(kernel_regularizer=regularizer))


# -- reduction="sum" ---------------------------------------------------------------------------


@on_adam_and_amsgrad
def test_sum(case):
    stock = train(hosts.stock(case.name, **case.arguments), BIG, compile={"loss_weights": [LENGTH]})
    ours = hosts.ours(case.name, accum_iters=LENGTH, reduction="sum", **case.arguments)
    assert_same_training(train(ours, MICRO), stock)


def test_sum_step_by_step():
    """Worked by hand: w = 4, loss w * w * x, x = 1..16; two x per micro-batch, two per window."""

    class Square(keras.layers.Layer):
        def build(self, shape):
            four = keras.initializers.Constant(4)
            self.w = self.add_weight(name="w", shape=(), initializer=four)

        def call(self, x):
            return self.w * self.w * x

    model = hosts.sequential((1,), [Square()])
    optimizer = hosts.ours("SGD", learning_rate=0.1, accum_iters=2, reduction="sum")
    # The loss is the sum over the micro-batch: twice the mean.
    model.compile(optimizer, loss=lambda y, p: 2 * p)
    w = [4.0]
    sums = []
    for x in np.arange(1, 17, dtype=hosts.FLOATX).reshape(8, 2, 1):
        model.train_on_batch(x, x)
        (accumulator,) = hosts.accumulators(optimizer)
        sums.append(float(hosts.array(accumulator)))
        w.append(float(model.get_weights()[0]))

    assert w[1::2] == w[0:-1:2], "the weight moved inside a window"
    # An update empties the accumulator. How far the weight moved tells what it held.
    sums[1::2] = [(old - new) / 0.1 for old, new in zip(w[0:-1:2], w[2::2])]
    tolerance = {"rtol": 1e-6 if not hosts.IS_TENSORFLOW else 1e-7}  # the rate is float32 there
    np.testing.assert_allclose(
        sums, [24, 80, -88, -208, 638.4, 1411.2, -6713.28, -14421.12], **tolerance
    )
    np.testing.assert_allclose(w[2::2], [-4, 16.8, -124.32, 1317.792], **tolerance)


# -- kinds of variables ------------------------------------------------------------------------


@on_each_kind_of_state
def test_embedding_has_the_dense_gradient(case):
    """Row 5 is in no micro-batch. The other rows are repeated in some and missing in others."""
    rows = np.random.default_rng(4).integers(0, 5, (len(data()[1]), 5)).astype("int32")
    arrays = rows, data()[1]
    stock = hosts.stock(case.name, **case.arguments)
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    expected = train(stock, BIG, lambda: embedding_model(DenseEmbedding), arrays=arrays)
    embedding = keras.layers.Embedding
    actual = train(ours, MICRO, lambda: embedding_model(embedding), arrays=arrays)
    assert_same_training(actual, expected)


@on_adam
def test_shared_layer(case):
    def build():
        x = keras.Input((3,))
        shared = keras.layers.Dense(3, activation="tanh", name="shared")
        out = keras.layers.Dense(2, name="out")(shared(shared(x)))
        return keras.Model(x, out, name="model")

    assert_equals_big_batch(case, build=build)


class Idle(keras.layers.Layer):
    """A layer with a trainable weight that the loss doesn't depend on."""

    def build(self, shape):
        self.idle = self.add_weight(name="idle", shape=(2,), initializer="ones")

    def call(self, x):
        return x


@keras2_has_no("training of weights without a gradient: it raises an error")
@on_adam
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@quick_first("options", [{}, EMA["ema_overwrite"]] if hosts.IS_KERAS3 else [{}])
def test_weight_without_gradient(case, options):
    def build():
        layers = dense_model().layers
        return hosts.sequential((3,), [Idle(name="idle"), *layers])

    stock = train(hosts.stock(case.name, **case.arguments, **options), BIG, build)
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments, **options)
    actual = train(ours, MICRO, build)
    assert_equal(actual.weights, stock.weights)
    assert_equal(actual.slots, stock.slots)
    idle = next(name for name in actual.weights if "idle" in name)
    assert_equal({"": actual.weights[idle]}, {"": stock.start[idle]})


# -- data types --------------------------------------------------------------------------------

# The rounding of the rule. All other tests on TensorFlow run in float64.
ROUNDING = {"float16": 4e-3, "float32": 1e-5}


@on_each_rule
@pytest.mark.parametrize("floatx", ROUNDING)
def test_other_float_types(case, floatx):
    hosts.set_floatx(floatx)
    # float16 sums and averages these gradients without rounding: only the rules are compared.
    gradients = np.random.default_rng(5).integers(1, 8, (UPDATES, LENGTH, 4)) / 8

    def run(optimizer, steps):
        w = hosts.variable([1.0, -1.0, 2.0, 3.0], "w", floatx)
        for gradient in steps:
            hosts.apply(optimizer, [gradient.astype(floatx)], [w])
        found = {name: hosts.array(v) for name, v in hosts.slots(optimizer, [w]).items()}
        return {"w": hosts.array(w), **found}

    # The default epsilon is 0 in float16.
    arguments = {**case.arguments, **({} if case.name == "SGD" else {"epsilon": 2**-10})}
    expected = run(hosts.stock(case.name, **arguments), gradients.mean(axis=1))
    ours = hosts.ours(case.name, accum_iters=LENGTH, **arguments)
    actual = run(ours, gradients.reshape(-1, 4))
    assert expected["w"].dtype == actual["w"].dtype == floatx
    assert_moved({"w": [1.0, -1.0, 2.0, 3.0]}, {"w": expected["w"]})
    assert_equal(actual, expected, rtol=ROUNDING[floatx], atol=ROUNDING[floatx])


@keras2_has_no("mixed precision")
@on_each_kind_of_state
def test_mixed_precision(case):
    hosts.set_floatx("float32")
    mixed = hosts.mixed_float16()

    def trained(optimizer, batch_size):
        optimizer = hosts.loss_scaled(optimizer, initial_scale=8.0)
        return train(optimizer, batch_size, lambda: dense_model(dtype=mixed))

    expected = trained(hosts.stock(case.name, **case.arguments), BIG)
    actual = trained(hosts.ours(case.name, accum_iters=LENGTH, **case.arguments), MICRO)
    # The network's float16 rounds differently in batches of another size.
    assert_same_training(actual, expected, rtol=1e-2, atol=5e-3)


@keras2_has_no("loss scaling")
@on_adam
def test_micro_batch_skipped_by_loss_scaling(case):
    """It leaves no trace: it isn't added or counted, and no window closes early."""
    hosts.set_floatx("float32")
    x, y = (array.astype("float32") for array in data())

    def trained(bad):
        ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
        model = compiled(dense_model(), hosts.loss_scaled(ours, initial_scale=8.0))
        start = weights(model)
        positions = []
        for i, (xs, ys) in enumerate(batches(MICRO, (x, y))):
            if i in bad:
                model.train_on_batch(xs, np.full_like(ys, np.inf))
                positions.append(ours.window_position)
            model.train_on_batch(xs, ys)
        return start, weights(model), slots(model), positions

    if hosts.IS_TF_KERAS:  # `iterations`, and so Adam's bias correction, counts what is skipped
        case = CASES["momentum"]
    start, expected, expected_slots, _ = trained(bad=())
    _, actual, actual_slots, positions = trained(bad=(2, 3, 4))
    if hosts.IS_TF_KERAS:  # as in the stock optimizer
        expected_slots["iterations"] += 3
    assert positions == [2, 3, 0]
    assert_moved(start, expected)
    assert_equal(actual, expected, rtol=0, atol=0)  # exact, since loss scales are powers of two
    assert_equal(actual_slots, expected_slots, rtol=0, atol=0)


# -- ways to run a train step ------------------------------------------------------------------

STEPS = (
    {}
    if hosts.IS_KERAS2
    else {
        "run_eagerly": {"run_eagerly": True},
        "jit_compile": {"jit_compile": True},
        "steps_per_execution": {"steps_per_execution": 3},  # windows have four
    }
)
if hosts.IS_TORCH:
    STEPS = {"run_eagerly": STEPS["run_eagerly"]}  # jit_compile: see test_torch_compile


@keras2_has_no("run_eagerly, jit_compile or steps_per_execution")
@on_adam_and_amsgrad
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_train_step(case, step):
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    assert_same_training(train(ours, MICRO, compile=step), big_batch(case))


@thorough
@pytest.mark.skipif(
    not hosts.IS_TORCH, reason="test_train_step covers jit_compile except on PyTorch"
)
def test_torch_compile():
    """One row only: torch takes ten seconds to compile it, and doesn't for each micro-batch."""
    counters = importlib.import_module("torch._dynamo.utils").counters
    counters.clear()
    case = CASES["adam"]
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    assert_same_training(train(ours, MICRO, compile={"jit_compile": True}), big_batch(case))
    assert 1 <= counters["stats"]["unique_graphs"] <= 4


@keras3_only
@on_adam
def test_loss_scale_factor(case):
    assert_equals_big_batch(case, both={"loss_scale_factor": 128.0})


@on_adam
def test_two_models_in_turn(case):
    """Two optimizers of one class share no state."""

    def trained(make, batch_size, **arguments):
        models = [
            compiled(dense_model(), make(case.name, **case.arguments, **arguments))
            for _ in range(2)
        ]
        start = weights(models[0])
        for x, y in batches(batch_size):
            models[0].train_on_batch(x, y)
            models[1].train_on_batch(-x, y)
        return start, [(weights(model), slots(model)) for model in models]

    start, expected = trained(hosts.stock, BIG)
    _, actual = trained(hosts.ours, MICRO, accum_iters=LENGTH)
    for (w, s), (stock_w, stock_s) in zip(actual, expected):
        assert_moved(start, stock_w)
        assert_equal(w, stock_w)
        assert_equal(s, stock_s)


@keras2_has_no("optimizer state that outlives another compile")
@on_adam
def test_compiling_again_keeps_the_window(case):
    stock = train(hosts.stock(case.name, **case.arguments), BIG, epochs=1)
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    model = compiled(dense_model(), ours)
    for i, (x, y) in enumerate(batches(MICRO)):
        model.train_on_batch(x, y)
        if i == 1:  # in the middle of the first window
            model.compile(ours, "mse")
    assert_moved(stock.start, stock.weights)
    assert_equal(weights(model), stock.weights)
    assert_equal(slots(model), stock.slots)


@on_adam_and_amsgrad
def test_one_micro_batch_is_the_stock_optimizer(case):
    """To the bit where the formula is the stock one, and without any further variable."""
    compile = {} if hosts.IS_KERAS2 else {"run_eagerly": False}
    expected = train(hosts.stock(case.name, **case.arguments), BIG, compile=compile)
    actual = train(hosts.ours(case.name, accum_iters=1, **case.arguments), BIG, compile=compile)
    assert set(actual.slots) == set(expected.slots)
    tolerance = {} if hosts.IS_KERAS2 else {"rtol": 0, "atol": 0}
    assert_same_training(actual, expected, **tolerance)


# -- what only one host has --------------------------------------------------------------------


@pytest.mark.skipif(not hosts.IS_LEGACY, reason="only legacy optimizers have gradient_transformers")
@on_adam
def test_gradient_transformers_see_the_average(case):
    """One that shifts zeros. No micro-batch inside a window may see the shift."""

    def shift(grads_and_vars):
        return [(2 * gradient + 0.125, variable) for gradient, variable in grads_and_vars]

    assert_equals_big_batch(case, both={"gradient_transformers": [shift]})


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="only tf_keras takes a tensor as learning rate")
@on_adam
def test_learning_rate_that_is_a_tensor(case):
    assert_equals_big_batch(case, both={"learning_rate": hosts.tf.constant(0.0625, hosts.FLOATX)})


@keras2_has_no("callable learning rates")
@on_adam
def test_learning_rate_that_is_a_callable(case):
    assert_equals_big_batch(case, both={"learning_rate": lambda: 0.0625})


@keras3_only
def test_overwritten_by_its_gradient():
    """A float8 scale becomes the largest of its window, unclipped. The reference is Keras's own."""

    def run(optimizer):
        scale, w = (keras.Variable([1.0, 2.0], name=name) for name in ("scale", "w"))
        scale.overwrite_with_gradient = True
        optimizer.build([scale, w])
        seen = []
        for g in (3.0, 1.0, 2.0, 5.0):
            gradient = keras.ops.convert_to_tensor([g, -g], dtype=scale.dtype)
            optimizer.apply([gradient, gradient])
            seen.append((hosts.array(scale).copy(), hosts.array(w).copy()))
        return seen

    actual = run(hosts.ours("Adam", global_clipnorm=0.1, accum_iters=2))
    expected = run(hosts.stock("Adam", global_clipnorm=0.1, gradient_accumulation_steps=2))
    np.testing.assert_allclose(actual, expected, **hosts.TOLERANCE)
    assert (actual[-1][0] == [5, 0]).all()
