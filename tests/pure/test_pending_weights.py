"""Which micro-batch gets a weight that `weigh` says or `fit` finds, and what is said of others."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy_keras import TRACES, SGDAccumulate, Unknown, Variable, tracing

from keras_accum.engine.pending import StepWeight
from keras_accum.host import AccumulationWarning


def optimizer(accum_iters=4, **options):
    found = SGDAccumulate(1.0, 0.0, accum_iters=accum_iters, **options)
    found.build([Variable(0.0, "w")])
    return found


def step(o, *, found=(), weight=None, traces=None):
    """A micro-batch for which `fit` found weights, and `weigh` said one."""
    traces, of_fit = list(TRACES) if traces is None else traces, o._accumulation.pending.of_fit
    is_whole = 0 not in of_fit
    if is_whole:
        of_fit[0] = StepWeight(traces)
    for value in found:
        of_fit[0].give(value, traces)
    if weight is not None:
        o.weigh(weight)
    o.apply([np.float64(1.0)], o.variables)
    if is_whole:
        del of_fit[0]


def weight_of(o):
    return float(o.get_state()["window_weight"])


def says(match):
    return pytest.warns(AccumulationWarning, match=match)


@pytest.mark.parametrize("reduction", ["auto", "weighted"])
def test_a_weight_is_taken_once(reduction):
    o = optimizer(reduction=reduction)
    step(o, found=[3])
    step(o, found=[2, 2])
    assert weight_of(o) == 5
    step(o, found=[7], weight=4)  # your own goes before
    assert weight_of(o) == 9


def test_the_number_of_samples_stands_in():
    """For each call of the optimizer in a step of `fit`, until another weight is found."""
    o = optimizer(accum_iters=None)
    current = o._accumulation.pending.of_fit[0] = StepWeight(())
    current.samples = 6
    assert not current.samples_are_taken
    step(o)
    step(o)
    assert weight_of(o) == 12 and current.samples_are_taken
    step(o, found=[2])
    assert weight_of(o) == 14
    del o._accumulation.pending.of_fit[0]
    step(o)
    assert weight_of(o) == 15


def test_samples_are_of_their_trace():
    o = optimizer()
    with tracing():
        current = o._accumulation.pending.of_fit[0] = StepWeight(list(TRACES))
        current.samples = 6
        step(o)
    assert weight_of(o) == 6
    step(o)
    assert weight_of(o) == 7
    with pytest.raises(ValueError, match="needs the weight of each micro-batch"):
        strict = optimizer(reduction="weighted")
        strict._accumulation.pending.of_fit[0] = current = StepWeight(())
        current.samples = 6
        step(strict)


def test_several_weights():
    """Different ones are said, and the first one counts; with "weighted" they are an error."""
    o = optimizer()
    with says("`compute_loss` was called several times .* the optimizer takes the first one"):
        step(o, found=[3, 3, 2])
    assert weight_of(o) == 3
    same = Unknown(np.float64(2))
    with tracing():
        step(o, found=[same, same])
    assert weight_of(o) == 5
    for weights in ([3, 2], [3, Unknown(np.float64(3))]):
        with pytest.raises(ValueError, match="`compute_loss` was called several times"):
            step(optimizer(reduction="weighted"), found=weights)


def test_a_weight_of_another_trace():
    o = optimizer()
    with tracing():
        of_trace = list(TRACES)
        with tracing():  # inside of it, as in a conditional
            step(o, found=[3], traces=of_trace)
    assert weight_of(o) == 3
    for traces, outer in ((of_trace, False), ((), True)):
        o = optimizer()
        with says("found a micro-batch's weight in another traced function"):
            if outer:
                with tracing():
                    step(o, found=[3], traces=traces)
            else:
                step(o, found=[3], traces=traces)
        assert weight_of(o) == 1


def test_gradients_that_are_summed_already():
    o = optimizer()
    pending = o._accumulation.pending
    pending.drop_from_fit()
    pending.of_fit[0] = StepWeight(())
    pending.of_fit[0].give(3, ())
    with says("can't weigh micro-batches whose gradients are already summed over replicas"):
        pending.drop_from_fit()
    step(o)
    assert weight_of(o) == 1


NOT_A_WEIGHT = [
    (None, TypeError, "must be a number or a scalar tensor.*Received: weight=None"),
    ("3", TypeError, "must be a number or a scalar tensor.*Received: weight='3'"),
    ([3], TypeError, r"must be a number or a scalar tensor.*Received: weight=\[3\]"),
    ((3,), TypeError, "must be a number"),
    ({}, TypeError, "must be a number"),
    (float("inf"), ValueError, "must be a finite number.*Received: weight=inf"),
    (np.ones(2), ValueError, r"must be one number.*Received: weight=a tensor of shape \(2,\)"),
    (np.ones((1, 3)), ValueError, r"must be one number.*shape \(1, 3\)"),
]


@pytest.mark.parametrize("weight, error, message", NOT_A_WEIGHT)
def test_what_is_no_weight(weight, error, message):
    with pytest.raises(error, match=message):
        optimizer().weigh(weight)


def test_what_is_one_number():
    unranked = SimpleNamespace(shape=SimpleNamespace(rank=None))
    for weight in (2, 0.5, -1, True, np.float32(2), np.ones(()), np.ones((1, 1)), unranked):
        optimizer()._accumulation.pending.weigh(weight)


def test_where_weigh_is_refused():
    for reduction in "mean", "sum":
        with pytest.raises(ValueError, match=f"constructed without `reduction`.*{reduction!r}"):
            optimizer(reduction=reduction).weigh(2)
    optimizer(accum_iters=1, reduction="mean").weigh(2)  # has no effect


def test_where_decide_is_refused():
    for value in (1, 0, np.bool_(True), None):
        with pytest.raises(TypeError, match="must be a Python boolean.*Received: is_update="):
            optimizer().decide(value)
    drops = {"skip_nonfinite=True": {"skip_nonfinite": True}, "skip_norm:": {"skip_norm": 1.0}}
    for name, options in drops.items():
        with pytest.raises(ValueError, match=f"can't be used with {name}"):
            optimizer(**options).decide(True)
    alone = optimizer(accum_iters=1)
    alone.decide(True)
    with pytest.raises(ValueError, match="needs accumulators.*Received: is_update=False"):
        alone.decide(False)
