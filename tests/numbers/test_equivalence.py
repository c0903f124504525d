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

keras3_only = pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="Keras 2's optimizers have no float8 scales"
)


@pytest.mark.all_gates
@on_every_optimizer
def test_plain(case):
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    assert_same_training(train(ours, MICRO), big_batch(case))


# -- one feature at a time -----------------------------------------------------------------------

RATE = CASES["adam"].arguments["learning_rate"]
EMA = {"use_ema": True, "ema_momentum": 0.6, "ema_overwrite_frequency": 4}


def halve_each_epoch():
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]


def halve_on_plateau():
    # No loss falls by 100, so the second epoch is a plateau, and the third runs at half the rate.
    return [keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=100)]


def constrained(constraint):
    return lambda: dense_model(kernel_constraint=constraint, bias_constraint=constraint)


def regularized():
    # A term of each micro-batch's loss, so the averaged gradient contains it exactly once.
    return dense_model(kernel_regularizer=keras.regularizers.l2(0.1))


def with_shared_layer():
    x = keras.Input((3,))
    shared = keras.layers.Dense(3, activation="tanh", name="shared")
    out = keras.layers.Dense(2, name="out")(shared(shared(x)))
    return keras.Model(x, out, name="model")


def shift(grads_and_vars):
    """It shifts zeros, too: no micro-batch inside a window may see the shift."""
    return [(2 * gradient + 0.125, variable) for gradient, variable in grads_and_vars]


# Arguments of `assert_equals_big_batch`. Those of LATER are for Adam, in the third tier.
FEATURES = {
    "LearningRateScheduler": {"callbacks": halve_each_epoch},
    "clipnorm": {"both": {"clipnorm": 0.3}},
    "constraint": {"build": constrained(Shrink())},
    "regularizer": {"build": regularized},
}
LATER = {
    "ReduceLROnPlateau": {"callbacks": halve_on_plateau},
    "clipvalue": {"both": {"clipvalue": 0.1}},
    "max_norm": {"build": constrained(keras.constraints.MaxNorm(0.5))},
    "shared_layer": {"build": with_shared_layer},
}
if hosts.HAS_DECAY:
    stock_decay = hosts.decayed(RATE, 0.25, UPDATES)
    FEATURES["decay"] = {"ours": {"decay": 0.25}, "stock": stock_decay}
if not hosts.IS_KERAS2:
    schedule = keras.optimizers.schedules.ExponentialDecay(RATE, 2, 0.7)
    FEATURES["schedule"] = {"both": {"learning_rate": schedule}}
    LATER["callable_rate"] = {"both": {"learning_rate": lambda: 2 * RATE}}
    LATER["global_clipnorm"] = {"both": {"global_clipnorm": 0.5}}
if hosts.HAS_EMA:
    FEATURES["ema"] = {"both": EMA}
    FEATURES["weight_decay"] = {"both": {"weight_decay": 0.2}}
    LATER["ema_at_the_end"] = {"both": {"use_ema": True, "ema_momentum": 0.6}}
    FEATURES["several"] = {
        "both": {"weight_decay": 0.2, "clipnorm": 0.3, **EMA},
        "ours": hosts.our_decay(0.25),
        "stock": hosts.decayed(RATE, 0.25, UPDATES) if hosts.HAS_DECAY else {},
        "build": constrained(Shrink()),
    }
if hosts.IS_KERAS3:
    LATER["loss_scale_factor"] = {"both": {"loss_scale_factor": 128.0}}
if hosts.IS_TF_KERAS:
    tensor = hosts.tf.constant(2 * RATE, hosts.FLOATX)
    FEATURES["tensor_rate"] = {"both": {"learning_rate": tensor}}
if hosts.IS_LEGACY:
    FEATURES["gradient_transformers"] = {"both": {"gradient_transformers": [shift]}}


@on_adam_and_amsgrad
@pytest.mark.parametrize("name", FEATURES)
def test_one_feature(case, name):
    """What a user adds to a training acts once per update, as at the big batch."""
    assert_equals_big_batch(case, **FEATURES[name])


@thorough
@pytest.mark.parametrize("name", LATER)
def test_another_feature(name):
    assert_equals_big_batch(CASES["adam"], **LATER[name])


@keras2_has_no("schedules to compare with")
@needs_decay
@on_adam
def test_callback_sees_the_undecayed_rate(case):
    # The reference gets the rate of each single update.
    rates = [RATE / 2 ** (1 + i // WINDOWS) / (1 + 0.25 * i) for i in range(UPDATES)]
    stock = hosts.stock(case.name, **{**case.arguments, "learning_rate": hosts.EachUpdate(rates)})
    ours = hosts.ours(case.name, accum_iters=LENGTH, decay=0.25, **case.arguments)
    actual = train(ours, MICRO, callbacks=halve_each_epoch())
    assert_same_training(actual, train(stock, BIG))


@pytest.mark.skipif(not hosts.HAS_EMA, reason="this style of optimizers has no weight_decay")
@on_adam
def test_weight_decay_with_exclusion(case):
    def trained(make, batch_size, **arguments):
        model = dense_model()
        optimizer = make(case.name, weight_decay=0.5, **case.arguments, **arguments)
        by_variable = {"var_list": [model.layers[-1].kernel]}
        optimizer.exclude_from_weight_decay(var_names=["bias"], **by_variable)
        return train(optimizer, batch_size, lambda: model)

    actual = trained(hosts.ours, MICRO, accum_iters=LENGTH)
    assert_same_training(actual, trained(hosts.stock, BIG))


@on_adam_and_amsgrad
def test_sum(case):
    stock = train(hosts.stock(case.name, **case.arguments), BIG, compile={"loss_weights": [LENGTH]})
    ours = hosts.ours(case.name, accum_iters=LENGTH, reduction="sum", **case.arguments)
    assert_same_training(train(ours, MICRO), stock)


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


class Idle(keras.layers.Layer):
    """A layer with a trainable weight that the loss doesn't depend on."""

    def build(self, shape):
        self.idle = self.add_weight(name="idle", shape=(2,), initializer="ones")

    def call(self, x):
        return x


@keras2_has_no("training of weights without a gradient: it raises an error")
@on_adam
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_weight_without_gradient(case):
    def build():
        return hosts.sequential((3,), [Idle(name="idle"), *dense_model().layers])

    options = EMA if hosts.IS_KERAS3 else {}
    stock = train(hosts.stock(case.name, **case.arguments, **options), BIG, build)
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments, **options)
    actual = train(ours, MICRO, build)
    assert_equal(actual.weights, stock.weights)
    assert_equal(actual.slots, stock.slots)
    idle = next(name for name in actual.weights if "idle" in name)
    assert_equal({"": actual.weights[idle]}, {"": stock.start[idle]})


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

STEPS = {"run_eagerly": True, "jit_compile": True, "steps_per_execution": 3}  # windows have four
if hosts.IS_TORCH:
    STEPS = {"run_eagerly": True}  # jit_compile: see test_torch_compile


@keras2_has_no("run_eagerly, jit_compile or steps_per_execution")
@on_adam_and_amsgrad
@pytest.mark.parametrize("step", STEPS)
def test_train_step(case, step):
    ours = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    assert_same_training(train(ours, MICRO, compile={step: STEPS[step]}), big_batch(case))


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


@on_adam_and_amsgrad
def test_one_micro_batch_is_the_stock_optimizer(case):
    """To the bit where the formula is the stock one, and without any further variable."""
    compile = {} if hosts.IS_KERAS2 else {"run_eagerly": False}
    expected = train(hosts.stock(case.name, **case.arguments), BIG, compile=compile)
    actual = train(hosts.ours(case.name, accum_iters=1, **case.arguments), BIG, compile=compile)
    assert set(actual.slots) == set(expected.slots)
    tolerance = {} if hosts.IS_KERAS2 else {"rtol": 0, "atol": 0}
    assert_same_training(actual, expected, **tolerance)
