"""A training in which no window closes says so."""

import warnings

import hosts
import pytest
from training import MICRO, compiled, data, dense_model, fit

LENGTH = 100
SAID = "ends with no update: 6 of 100 micro-batches"
SIX = [array[: 6 * MICRO] for array in data()]
told = pytest.mark.skipif(not hosts.IS_KERAS3, reason="Keras 2 tells only callbacks of the end")


def model_of(**arguments):
    return compiled(dense_model(), hosts.ours("SGD", **{"accum_iters": LENGTH, **arguments}))


def said(function):
    """How many of our warnings a call gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return sum("no update" in str(warning.message) for warning in found)


@told
def test_it_is_said():
    model = model_of()
    with pytest.warns(UserWarning, match=SAID.replace("6", "18")):
        fit(model, MICRO, SIX, epochs=3)


@told
def test_inside_a_loss_scaling_optimizer():
    model = compiled(dense_model(), hosts.loss_scaled(hosts.ours("SGD", accum_iters=LENGTH), 4.0))
    with pytest.warns(UserWarning, match=SAID):
        fit(model, MICRO, SIX, epochs=1)


callbacks = pytest.mark.parametrize(
    "names",
    [["AccumulationMonitor"], ["PythonGate"], ["AccumulationMonitor", "PythonGate"]],
    ids=" ".join,
)


@pytest.mark.skipif(hosts.IS_KERAS2, reason="has none of them")
@callbacks
def test_it_is_said_once_with_callbacks(names):
    model = model_of()
    used = [getattr(hosts.accum, name)() for name in names]
    for _ in range(2):
        assert said(lambda: fit(model, MICRO, SIX, epochs=1, callbacks=used)) == 1


@pytest.mark.parametrize(
    "arguments, name",
    [({"accum_iters": 6}, None), ({"accum_iters": 1}, None), ({}, "ApplyPartialWindow")],
    ids=str,
)
def test_a_training_with_an_update_says_nothing(arguments, name):
    model = model_of(**arguments)
    used = [getattr(hosts.accum, name)()] if name else []
    assert said(lambda: fit(model, MICRO, SIX, epochs=1, callbacks=used)) == 0


@told
def test_only_of_what_this_training_did():
    """Not where a window goes on and closes."""
    model = model_of(accum_iters=8)
    assert said(lambda: fit(model, MICRO, SIX, epochs=1)) == 1
    assert said(lambda: fit(model, MICRO, SIX, epochs=1)) == 0


@told
def test_a_loaded_optimizer_knows_what_it_had_done():
    model = model_of(accum_iters=4)
    fit(model, MICRO, SIX, epochs=1)
    other = model_of(accum_iters=9)
    state = model.optimizer.get_state()
    other.optimizer.set_state({**state, "accum_iters": 100, "window_length": 100})
    assert other.optimizer.completed_updates == 1
    assert said(lambda: fit(other, MICRO, SIX, epochs=1)) == 1
