"""LENGTH micro-batches per update train a real model like the stock optimizer on big batches."""

import importlib
from functools import partial

import cases
import hosts
import numpy as np
import pytest
import training
from cases import ADAM, keras2_has_no, needs_decay, on_each_kind_of_state, quick_first, thorough
from hosts import keras
from steps import assert_branches, assert_windows_equal_big_batches, made, stepper
from training import (
    BIG,
    LENGTH,
    MICRO,
    assert_same_training,
    big_batch,
    compiled,
    data,
    dense_model,
    fit,
    in_windows,
    train,
)

pytestmark = pytest.mark.usefixtures("grappler")


@pytest.mark.all_gates
@pytest.mark.usefixtures("every_gate")
@cases.on_each_rule
def test_plain(case):
    """Each optimizer, by each gate."""
    assert_same_training(train(in_windows(case), MICRO), big_batch(case))


# -- one feature at a time -----------------------------------------------------------------------

RATE = ADAM.arguments["learning_rate"]
EMA = {"use_ema": True, "ema_momentum": 0.6, "ema_overwrite_frequency": 4}


def halve_each_epoch():
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]


def halve_on_plateau():
    # No loss falls by 100, so the second epoch is a plateau, and the third runs at half the rate.
    return [keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=100)]


def constrained():
    return dense_model(kernel_constraint=training.Shrink(), bias_constraint=training.Shrink())


def regularized():
    # A term of each micro-batch's loss, so the averaged gradient contains it exactly once.
    return dense_model(kernel_regularizer=keras.regularizers.l2(0.1))


def with_shared_layer():
    x = keras.Input((3,))
    shared = keras.layers.Dense(3, activation="tanh", name="shared")
    out = keras.layers.Dense(2, name="out")(shared(shared(x)))
    return keras.Model(x, out, name="model")


# Arguments of both optimizers, ours or the stock one, a model, and callbacks. Those of LATER are in
# the third tier.
FEATURES = {
    "several": {
        "both": {"clipnorm": 0.3, **({"weight_decay": 0.2, **EMA} if hosts.HAS_EMA else {})},
        "ours": hosts.our_decay(0.25),
        "stock": hosts.decayed(RATE, 0.25, training.UPDATES) if hosts.HAS_DECAY else {},
        "build": constrained,
    },
    "LearningRateScheduler": {"callbacks": halve_each_epoch},
    "regularizer": {"build": regularized},
}
LATER = {
    "ReduceLROnPlateau": {"callbacks": halve_on_plateau},
    "shared_layer": {"build": with_shared_layer},
}
if hosts.HAS_EMA:
    LATER["ema_at_the_end"] = {"both": {"use_ema": True, "ema_momentum": 0.6}}


@quick_first("name", [*FEATURES, *LATER])
def test_one_feature(name):
    """What a user adds to a training acts once per update, as at the big batch."""
    more = {**FEATURES, **LATER}[name]
    both, build = more.get("both", {}), more.get("build", dense_model)
    stock = hosts.stock("Adam", **{**ADAM.arguments, **both, **more.get("stock", {})})
    accumulating = in_windows(ADAM, **{**both, **more.get("ours", {})})
    callbacks = more.get("callbacks", list)
    expected = train(stock, BIG, build, callbacks=callbacks())
    assert_same_training(train(accumulating, MICRO, build, callbacks=callbacks()), expected)


ARGUMENTS = {"clipvalue": {"clipvalue": 0.9}}
if not hosts.IS_KERAS2:
    schedule = keras.optimizers.schedules.ExponentialDecay(RATE, 2, 0.7)
    ARGUMENTS["schedule"] = {"learning_rate": schedule}
    ARGUMENTS["callable_rate"] = {"learning_rate": lambda: 2 * RATE}
    ARGUMENTS["global_clipnorm"] = {"global_clipnorm": 0.5}
if hosts.IS_KERAS3:
    ARGUMENTS["loss_scale_factor"] = {"loss_scale_factor": 128.0}
if hosts.IS_TF_KERAS:
    ARGUMENTS["tensor_rate"] = {"learning_rate": hosts.tf.constant(2 * RATE, hosts.FLOATX)}


@quick_first("name", list(ARGUMENTS))
def test_one_argument(name):
    """An argument needs no model: given gradients show each micro-batch."""
    more = ARGUMENTS[name]
    accumulating, mine = made(in_windows(ADAM, **more))
    stock, theirs = made(hosts.stock("Adam", **{**ADAM.arguments, **more}))
    assert_windows_equal_big_batches(accumulating, stock, mine, theirs)
    assert_branches(accumulating, mine, is_of_user=name == "callable_rate")


@keras2_has_no("schedules to compare with")
@needs_decay
def test_callback_sees_the_undecayed_rate():
    # The reference gets the rate of each single update.
    epochs = [i // training.WINDOWS for i in range(training.UPDATES)]
    rates = [RATE / 2 ** (1 + epoch) / (1 + 0.25 * i) for i, epoch in enumerate(epochs)]
    expected = train(hosts.stock("Adam", learning_rate=hosts.EachUpdate(rates)), BIG)
    actual = train(in_windows(ADAM, decay=0.25), MICRO, callbacks=halve_each_epoch())
    assert_same_training(actual, expected)


def test_sum():
    expected = train(hosts.stock("Adam", **ADAM.arguments), BIG, compile={"loss_weights": [LENGTH]})
    assert_same_training(train(in_windows(ADAM, reduction="sum"), MICRO), expected)


# -- kinds of variables ------------------------------------------------------------------------


# Elsewhere the layer's gradient is dense.
of_sparse_gradients = on_each_kind_of_state if hosts.IS_TENSORFLOW else cases.on_adam


@of_sparse_gradients
def test_embedding_has_the_dense_gradient(case):
    """Row 5 is in no micro-batch. The other rows are repeated in some and missing in others."""
    rows = np.random.default_rng(4).integers(0, 5, (len(data()[1]), 5)).astype("int32")
    arrays = rows, data()[1]
    stock = hosts.stock(case.name, **case.arguments)
    dense, sparse = (
        partial(training.embedding_model, layer)
        for layer in (training.DenseEmbedding, keras.layers.Embedding)
    )
    expected = train(stock, BIG, dense, arrays=arrays)
    assert_same_training(train(in_windows(case), MICRO, sparse, arrays=arrays), expected)


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2's optimizers have no float8 scales")
def test_float8():
    """A scale's "gradient" is its next value. Without windows it is, as with stock."""

    def run(optimizer):
        scale, w = (keras.Variable([1.0, 2.0], name=name) for name in ("scale", "w"))
        scale.overwrite_with_gradient = True
        optimizer.build([scale, w])
        for g in (3.0, 1.0):
            gradient = keras.ops.convert_to_tensor([g, -g], dtype=scale.dtype)
            optimizer.apply([gradient, gradient])
        return [hosts.array(variable).copy() for variable in (scale, w)]

    with pytest.raises(ValueError, match="Layers in float8 .*with a stock optimizer.*scale, and 0"):
        run(hosts.ours("Adam", accum_iters=2))
    np.testing.assert_array_equal(run(hosts.ours("Adam")), run(hosts.stock("Adam")))


# -- mixed precision ---------------------------------------------------------------------------


@keras2_has_no("mixed precision")
@cases.on_adam_and_amsgrad
def test_mixed_precision(case):
    hosts.set_floatx("float32")

    def trained(optimizer, batch_size):
        optimizer = hosts.loss_scaled(optimizer, initial_scale=8.0)
        return train(optimizer, batch_size, lambda: dense_model(dtype=hosts.mixed_float16()))

    expected = trained(hosts.stock(case.name, **case.arguments), BIG)
    # The network's float16 rounds differently in batches of another size.
    assert_same_training(trained(in_windows(case), MICRO), expected, rtol=1e-2, atol=5e-3)


@keras2_has_no("loss scaling")
@cases.on_special_states
def test_inside_a_loss_scale(case):
    """Keras 3 divides gradients by the scale when it applies them, tf_keras when it makes them."""
    accumulating, stock = in_windows(case), hosts.stock(case.name, **case.arguments)
    # Keras 3 leaves Nadam's product out of the variables of an optimizer that is built so.
    (scaled, mine), (_, theirs) = (made(hosts.loss_scaled(o, 8.0)) for o in (accumulating, stock))
    run, scale = stepper(scaled, mine), 8 if hosts.IS_KERAS3 else 1
    assert_windows_equal_big_batches(
        *(accumulating, stock, mine, theirs),
        step=lambda grads, is_last: run([scale * g for g in grads]),
    )


@keras2_has_no("loss scaling")
def test_micro_batch_skipped_by_loss_scaling():
    """It leaves no trace: it isn't added or counted, and no window closes early."""
    hosts.set_floatx("float32")
    x, y = (array.astype("float32") for array in data())

    def trained(bad):
        optimizer = hosts.ours("Adam", learning_rate=2**-4, accum_iters=LENGTH)
        model = training.compiled(dense_model(), hosts.loss_scaled(optimizer, initial_scale=8.0))
        start, positions = training.weights(model), []
        for i, (xs, ys) in enumerate(training.batches(MICRO, (x, y))):
            if i in bad:
                model.train_on_batch(xs, np.full_like(ys, np.inf))
                positions.append(optimizer.window_position)
            model.train_on_batch(xs, ys)
        return start, training.weights(model), training.slots(model), positions

    start, expected, expected_slots, _ = trained(bad=())
    _, actual, actual_slots, positions = trained(bad=(2, 3, 4))
    assert positions == [2, 3, 0]
    training.assert_moved(start, expected)
    # Exact, since loss scales are powers of two.
    training.assert_equal(actual, expected, rtol=0, atol=0)
    training.assert_equal(actual_slots, expected_slots, rtol=0, atol=0)


# -- ways to run a train step ------------------------------------------------------------------

# Windows have four micro-batches.
STEPS = [("run_eagerly", True), ("jit_compile", True), ("steps_per_execution", 3)]
if hosts.IS_TORCH:  # jit_compile: see test_torch_compile
    STEPS = [("run_eagerly", True)]
    STEPS += [("steps_per_execution", n) for n in (2, 4) if hosts.IS_KERAS_3_16]


@keras2_has_no("run_eagerly, jit_compile or steps_per_execution")
@pytest.mark.parametrize("step, value", STEPS)
def test_train_step(step, value):
    actual = train(in_windows(ADAM), MICRO, compile={step: value})
    assert_same_training(actual, big_batch(ADAM))


@thorough
@pytest.mark.weekly
@pytest.mark.skipif(not hosts.IS_TORCH, reason="elsewhere test_train_step has jit_compile")
def test_torch_compile(monkeypatch):
    """It traces a few graphs, not one for each micro-batch. To compile these takes long."""
    torch = importlib.import_module("torch")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    counters = importlib.import_module("torch._dynamo.utils").counters
    counters.clear()
    model = compiled(dense_model(), in_windows(ADAM), jit_compile=True)
    actual = train(in_windows(ADAM), MICRO, compile={"jit_compile": True})
    assert_same_training(actual, big_batch(ADAM))
    assert 1 <= counters["stats"]["unique_graphs"] <= 4
    found = []
    for _ in range(2):  # an update between steps lets nothing be compiled again
        fit(model, MICRO, [array[: BIG + MICRO] for array in data()], epochs=1)
        found.append(counters["stats"]["unique_graphs"])
    assert found[0] == found[1]


@cases.on_adam_and_amsgrad
def test_one_micro_batch_is_the_stock_optimizer(case):
    """To the bit where the formula is the stock one, and without any further variable."""
    compile = {} if hosts.IS_KERAS2 else {"run_eagerly": False}
    expected = train(hosts.stock(case.name, **case.arguments), BIG, compile=compile)
    actual = train(in_windows(case, accum_iters=1), BIG, compile=compile)
    assert set(actual.slots) == set(expected.slots)
    tolerance = {} if hosts.IS_KERAS2 else {"rtol": 0, "atol": 0}
    assert_same_training(actual, expected, **tolerance)


HYPERPARAMETERS = [("SGD", "momentum"), ("RMSprop", "rho"), ("Adam", "beta_1"), ("Adam", "beta_2")]


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("name, hyperparameter", HYPERPARAMETERS)
def test_a_hyperparameter_that_is_set_later(name, hyperparameter, length):
    """Before the first step, and between two updates; the window's average as stock uses it."""

    def set_to(optimizer, value):
        if hosts.IS_KERAS2:
            keras.backend.set_value(getattr(optimizer, hyperparameter), value)
        else:
            setattr(optimizer, hyperparameter, value)

    def trained(optimizer, windows):
        w = hosts.variable([1.0, -2.0], "w")
        if hosts.IS_KERAS3:  # whose SGD decides in `build` whether it has momentum
            set_to(optimizer, 0.5)
        hosts.build_on(optimizer, [w])
        for update, window in enumerate(windows):
            if update:
                set_to(optimizer, 0.9 - update / 8)
            for grads in window:
                hosts.apply(optimizer, [grads], [w])
        return hosts.array(w)

    micro_batches = np.array([[0.5, 1.0], [1.5, -1.0], [2.0, 0.25]] * 2 * length, hosts.FLOATX)
    windows = micro_batches.reshape(-1, length, 2)
    actual = trained(hosts.ours(name, learning_rate=0.125, accum_iters=length), windows)
    expected = trained(hosts.stock(name, learning_rate=0.125), windows.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
