"""What the package reads of Keras's losses: what they are divided by, and those that layers add.

Here, internals are called on each loss of Keras; test_right_by_default.py has whole trainings.
"""

import itertools

import hosts
import numpy as np
import pytest
from cases import once_by_torch, quick_once, skip_file_on_keras2
from hosts import keras
from training import MICRO, compiled, data, dense_model
from zoo import Adds, total

from keras_accum.engine.pending import StepWeight
from keras_accum.terms.tap import TappedLoss
from keras_accum.terms.term import Divisor

skip_file_on_keras2("reduction='auto'")

layers = keras.layers


def list_losses():
    """Return the names of Keras's losses, with arguments that show what they are divided by."""
    names = [name for name, cls in vars(keras.losses).items() if is_loss(cls)]
    rows = {name: (name, {}) for name in sorted(names)}
    rows["ignored"] = "SparseCategoricalCrossentropy", {"ignore_class": 0}
    return rows


def is_loss(cls):
    bases = keras.losses.Loss
    return isinstance(cls, type) and issubclass(cls, bases) and cls is not bases


SAMPLES, STEPS, UNITS = 4, 5, 3


def make_call(name, has_steps):
    """Return targets and predictions for a loss."""
    random = np.random.default_rng(7)
    shape = (SAMPLES, STEPS, UNITS) if has_steps or name == "CTC" else (SAMPLES, UNITS)
    y_pred = random.uniform(0.1, 1, shape)
    y_pred /= y_pred.sum(-1, keepdims=True)
    y_true = random.uniform(0.1, 0.9, shape)
    if name.startswith("SparseCat") or name in ("CTC", "CategoricalGeneralizedCrossEntropy"):
        y_true = random.integers(1 if name == "CTC" else 0, UNITS, shape[:-1])
        y_true = y_true[:, :2] if name == "CTC" else y_true
    if name == "Circle":
        y_true = np.arange(SAMPLES) % 2
    dtype = "int32" if y_true.dtype.kind == "i" else hosts.FLOATX
    return y_true.astype(dtype), y_pred.astype(hosts.FLOATX)


def tensor(array):
    if array is None or hosts.IS_KERAS3:
        return None if array is None else keras.ops.convert_to_tensor(array)
    return hosts.tf.constant(array)


REDUCTIONS = ["sum_over_batch_size"]
REDUCTIONS += ["mean", "mean_with_sample_weight"] if hosts.IS_KERAS3 else ["auto"]
WEIGHTS = [None, (SAMPLES,), (SAMPLES, 1), (SAMPLES, STEPS), (SAMPLES, STEPS, 1)]


def call(name, arguments, reduction, case):
    """Call a loss with a case's arrays. Return its result and the Term."""
    host, (has_steps, shape, is_masked) = hosts.accum.ApplyPartialWindow.host, case
    random, arrays = np.random.default_rng(8), make_call(name, has_steps)
    y_true, y_pred = map(tensor, arrays)
    weights = shape and random.uniform(0.5, 2, shape).astype(hosts.FLOATX)
    if is_masked:
        host.set_mask(y_pred, tensor(random.uniform(size=arrays[1].shape[:-1]) < 0.6))
    loss = getattr(keras.losses, name)(**arguments, reduction=reduction)
    terms = []
    tapped = TappedLoss(host, loss, None, lambda term, result: (terms.append(term), result)[1])
    return hosts.array(tapped(y_true, y_pred, tensor(weights))), terms[0]


@once_by_torch  # elsewhere on Keras 3, it is the same code
@pytest.mark.parametrize("name, arguments", list_losses().values(), ids=list_losses())
def test_the_divisor_times_the_loss_is_the_sum(name, arguments):
    """For each shape of sample weights and each mask that Keras takes."""
    seen = 0
    cases = itertools.product([False, True], WEIGHTS, [False, True])
    for case, reduction in itertools.product(cases, REDUCTIONS):
        try:
            expected, _ = call(name, arguments, "sum", case)
            result, term = call(name, arguments, reduction, case)
        except Exception:  # Keras can't
            continue
        if term.divisor in (Divisor.COMPARES, Divisor.UNKNOWN):
            continue
        divisor = term.count(hosts.FLOATX)
        divisor = divisor if isinstance(divisor, int) else hosts.array(divisor)
        err_msg = f"steps, shape of weights, masked: {case}, {reduction}"
        np.testing.assert_allclose(divisor * result, expected, rtol=1e-5, err_msg=err_msg)
        seen += 1
    assert seen > 10 or name in ("Circle", "Dice", "Tversky")


@once_by_torch
def test_a_loss_with_a_call_of_its_own(monkeypatch):
    """It may do anything, whatever module it names. Keras's own are read."""

    class Own(keras.losses.MeanSquaredError):
        def __call__(self, *arguments, **keywords):
            return super().__call__(*arguments, **keywords)

    Own.__call__.__module__ = keras.losses.Loss.__module__
    monkeypatch.setattr(keras.losses, "Own", Own, raising=False)
    _, term = call("Own", {}, REDUCTIONS[0], (False, None, False))
    assert term.divisor is Divisor.UNKNOWN


@once_by_torch
@pytest.mark.parametrize("name, arguments", list_losses().values(), ids=list_losses())
def test_a_loss_of_keras_is_known(name, arguments):
    """Also whether it compares samples."""
    _, term = call(name, arguments, REDUCTIONS[0], (False, None, False))
    assert not term.is_own
    assert (term.divisor is Divisor.COMPARES) == (name in ("Circle", "Dice", "Tversky"))


# -- in `fit` --------------------------------------------------------------------------------------


@quick_once
@pytest.mark.parametrize("weights", [None, np.ones(2 * MICRO, "float32")], ids=["plain", "weights"])
def test_a_weight_that_a_shape_tells(weights, monkeypatch):
    """It is a number, so that PyTorch computes nothing, also for one sample weight per sample."""
    model, seen = compiled(dense_model(), hosts.ours("SGD", accum_iters=2), run_eagerly=True), []
    give = StepWeight.give

    def give_and_see(step, weight, traces):
        seen.append(weight)
        give(step, weight, traces)

    monkeypatch.setattr(StepWeight, "give", give_and_see)
    x, y = (array[: 2 * MICRO - 1] for array in data())
    weights = None if weights is None else weights[: 2 * MICRO - 1]
    model.fit(x, y, batch_size=MICRO, sample_weight=weights, shuffle=False, verbose=0)
    assert seen == [MICRO, MICRO - 1] and all(isinstance(weight, int) for weight in seen)


class Counted(keras.regularizers.L2 if hosts.IS_KERAS3 else object):
    """A penalty that counts its calls."""

    calls = 0

    def __call__(self, weight):
        self.calls += 1
        return super().__call__(weight)


class OwnLosses(keras.Model):
    """A model whose own `losses` Keras reads."""

    @property
    def losses(self):
        return [2.0 * loss for loss in super().losses]


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about the lists of Keras 3")
@pytest.mark.parametrize("kind", ["plain", "frozen", "added after compile", "shared", "its own"])
def test_added_losses_are_those_of_keras(kind):
    """They come without the penalties on weights, which take a micro-batch's time to compute."""
    host = hosts.accum.ApplyPartialWindow.host
    penalized = Counted(0.5)
    dense = layers.Dense(3, activity_regularizer="l2", kernel_regularizer=penalized)
    shared = [dense, dense] if kind == "shared" else [dense]
    model = keras.Sequential([keras.Input((3,)), *shared, Adds()])
    model.compile(hosts.ours("SGD", accum_iters=2), "mse")
    if kind == "its own":
        model = OwnLosses(model.inputs[0], model.outputs[0])
    elif kind == "added after compile":
        model.add(Adds(total))
    elif kind == "frozen":
        dense.trainable = False
    model(np.ones((4, 3), hosts.FLOATX))
    before = penalized.calls
    found = list(map(host.read, host.list_added_losses(model)))
    assert kind == "its own" or penalized.calls == before
    of_keras = list(map(host.read, model.losses))
    expected = of_keras if kind == "frozen" else of_keras[:-1]
    assert found == expected
    assert len(expected) == {"plain": 2, "frozen": 2, "its own": 2}.get(kind, 3)
