"""`train_on_batch` weighs as `fit` does, and windows that began without weights continue."""

import hosts
import numpy as np
import pytest
import zoo
from cases import once_by_torch, own_code, quick_once, skip_file_on_keras2, thorough
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    assert_equal,
    assert_same_models,
    batches,
    compiled,
    data,
    dense_model,
    fit,
    our_warnings,
    weights,
)

pytestmark = quick_once
skip_file_on_keras2("reduction='auto'")
SIZES = 4, 4, 3  # samples in the micro-batches of a window
modes = pytest.mark.parametrize(
    "mode", [{}, pytest.param({"run_eagerly": True}, marks=[thorough, once_by_torch])]
)


def adam(**arguments):
    return hosts.ours("Adam", learning_rate=0.01, **{"accum_iters": len(SIZES), **arguments})


def stock_model(loss="mse"):
    return compiled(dense_model(), hosts.stock("Adam", learning_rate=0.01), loss)


def windows():
    """Two windows of arrays: inputs, targets and weights of samples."""
    x, y = data()
    sample_weights = np.linspace(0.1, 2, len(x)).astype(hosts.FLOATX)
    return [[array[s : s + sum(SIZES)] for array in (x, y, sample_weights)] for s in (0, 11)]


def split(window):
    ends = np.cumsum(SIZES)
    return list(zip(*(np.split(array, ends[:-1]) for array in window)))


def sum_loss():
    return keras.losses.MeanSquaredError(reduction="sum")


def said(model, batches=(), **arguments):
    with our_warnings() as texts:
        for batch in batches:
            model.train_on_batch(*batch)
        if arguments:
            fit(model, **{"epochs": 1, **arguments})
    return texts


@own_code
def test_a_graph_that_is_traced_again():
    """It counts samples in the second trace alone, in which TensorFlow makes no variables."""
    model, reference = (
        compiled(zoo.network(cls=zoo.OwnLoss), o("SGD", learning_rate=0.1, **more), **run)
        for o, more, run in (
            (hosts.ours, {"accum_iters": len(SIZES)}, {"run_eagerly": False}),
            (hosts.stock, {}, {}),
        )
    )
    for window in windows():
        arrays = window[:2]
        for batch in split(arrays):
            model.train_on_batch(*batch)
        reference.train_on_batch(*arrays)
    assert_equal(weights(model), weights(reference))


@modes
@pytest.mark.parametrize(
    "loss, reduction",
    [("mean", "weighted"), ("sum", "auto"), pytest.param("mean", "auto", marks=thorough)],
)
def test_uneven_micro_batches(loss, reduction, mode):
    """They are the big batch, also as its sample weights and the logged loss go."""
    make_loss = sum_loss if loss == "sum" else lambda: "mse"
    model = compiled(dense_model(), adam(reduction=reduction), make_loss(), **mode)
    reference = stock_model(make_loss())
    for window in windows():
        assert said(model, split(window)) == []
        reference.train_on_batch(*window)
    assert model.optimizer.completed_updates == 2
    assert_same_models(model, reference)


@modes
def test_windows_continue_from_call_to_call(mode):
    """From `train_on_batch` to `fit` and back, with one trace of the train step."""
    model, reference = compiled(dense_model(), adam(), **mode), stock_model()
    (x, y, _), others = windows()[0], split(windows()[1])
    first, second, third = split((x, y))
    assert said(model, [first, second]) == []
    assert said(model, batch_size=3, arrays=third) == []
    made = model.optimizer._accumulation.weighing_callback.kept
    assert said(model, others) == []
    assert model.optimizer._accumulation.weighing_callback.kept is made
    reference.train_on_batch(x, y)
    reference.train_on_batch(*windows()[1])
    assert_same_models(model, reference)


def test_the_weight_is_that_of_its_call():
    """Also after one sample, whose weight 1 is no missing weight."""
    model, reference = compiled(dense_model(), adam()), stock_model()
    x, y = data()
    ends = 1, 2, 8
    for start, stop in zip((0, *ends), ends):
        model.train_on_batch(x[start:stop], y[start:stop])
    reference.train_on_batch(x[:8], y[:8])
    assert_same_models(model, reference)


def test_train_on_batch_after_an_interruption():
    """Ctrl-C between the change of the train function and its call leaves nothing."""
    model, reference = compiled(dense_model(), adam()), stock_model()
    parts = split(windows()[0])
    model.train_on_batch(*parts[0])
    kept = model.optimizer._accumulation.weighing_callback.kept
    vars(model)["train_function"] = kept
    for part in parts[1:]:
        model.train_on_batch(*part)
    reference.train_on_batch(*windows()[0])
    assert_same_models(model, reference)
    assert model.train_function is not kept and "make_train_function" not in vars(model)


# -- windows without weights that continue with weights --------------------------------------------

LEFT = 2  # micro-batches in the window, after a whole one


def go(optimizer):
    """Return a model in the middle of a window of micro-batches that count the same."""
    model = compiled(dense_model(), optimizer)
    for x, y in batches(MICRO)[: LENGTH + LEFT]:
        model.train_on_batch(x, y)
    return model


def by_state(is_built):
    model = go(adam(accum_iters=LENGTH, reduction="mean"))
    optimizer = adam(accum_iters=LENGTH)
    if is_built:
        optimizer.build(model.trainable_variables)
    optimizer.set_state(model.optimizer.get_state())
    return model, optimizer


def by_conversion():
    model = go(adam(accum_iters=LENGTH, reduction="mean"))
    return model, type(model.optimizer).from_optimizer(model.optimizer, reduction="auto")


def by_conversion_from_keras():
    steps = {"gradient_accumulation_steps": LENGTH}
    model = go(hosts.stock("Adam", learning_rate=0.01, **steps))
    return model, hosts.accum.AdamAccumulate.from_optimizer(model.optimizer)


WAYS = {
    "built": lambda: by_state(True),
    "waiting": lambda: by_state(False),
    "converted": by_conversion,
    "of Keras": by_conversion_from_keras,
}


QUICK = {("built", "train_on_batch"), ("of Keras", "fit")}
EVERY = [
    pytest.param(way, who, marks=[] if (way, who) in QUICK else thorough)
    for way in WAYS
    for who in ("fit", "train_on_batch")
]


@modes
@pytest.mark.parametrize("way, who", EVERY)
def test_a_window_without_weights(way, who, mode):
    """Its micro-batches count as the first one with a weight: even ones are the big batch."""
    if way == "of Keras" and not hosts.IS_KERAS3:
        pytest.skip("only Keras 3 accumulates by itself")
    model, optimizer = WAYS[way]()
    if hosts.IS_KERAS3 and hosts.IS_TENSORFLOW:
        mode = {"jit_compile": False, **mode}
    model.compile(optimizer, "mse", **mode)
    rest = [array[(LENGTH + LEFT) * MICRO :] for array in data()]
    if who == "fit":
        assert said(model, batch_size=MICRO, arrays=rest) == []
    else:
        assert said(model, batches(MICRO, rest)) == []
    reference = stock_model()
    fit(reference, LENGTH * MICRO, epochs=1)
    assert optimizer.completed_updates == 3
    assert_same_models(model, reference)
