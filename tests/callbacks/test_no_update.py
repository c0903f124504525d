"""A training in which no window closes gives a warning."""

import warnings

import hosts
import pytest
from cases import quick_once
from training import MICRO, compiled, data, dense_model, fit

pytestmark = quick_once

LENGTH = 100
SAID = "ends with no update: 6 of 100 micro-batches"
SIX = [array[: 6 * MICRO] for array in data()]
told = pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="Keras 2 tells only callbacks when `fit` ends"
)


def model_of(**arguments):
    return compiled(dense_model(), hosts.ours("SGD", **{"accum_iters": LENGTH, **arguments}))


def said(function):
    """The number of our warnings that a call gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return sum("no update" in str(warning.message) for warning in found)


@told
def test_a_training_without_an_update_warns():
    model = model_of()
    with pytest.warns(UserWarning, match=SAID.replace("6", "18")):
        fit(model, MICRO, SIX, epochs=3)


@told
def test_it_points_at_the_line_of_the_user():
    """Not at a line of ours or of Keras."""
    model = model_of()
    with pytest.warns(UserWarning, match=SAID) as found:
        model.fit(*SIX, batch_size=MICRO, verbose=0)
    ours = [warning for warning in found if warning.category is UserWarning]
    assert [warning.filename for warning in ours] == [__file__]


@pytest.mark.skipif(not hosts.IS_KERAS3 or hosts.IS_TORCH, reason="Keras itself warns there")
def test_a_training_gives_no_warning_of_numpy():
    """As NumPy 2 does where it copies a variable of Keras 3. On PyTorch Keras does so by itself."""
    model = model_of(accum_iters=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, MICRO, SIX, callbacks=[hosts.accum.AccumulationMonitor()])
        model.optimizer.set_state(model.optimizer.get_state())


@told
def test_it_warns_inside_a_loss_scale_optimizer():
    model = compiled(dense_model(), hosts.loss_scaled(hosts.ours("SGD", accum_iters=LENGTH), 4.0))
    with pytest.warns(UserWarning, match=SAID):
        fit(model, MICRO, SIX, epochs=1)


callbacks = pytest.mark.parametrize(
    "names",
    [["AccumulationMonitor"], ["PythonGate"], ["AccumulationMonitor", "PythonGate"]],
    ids=" ".join,
)


@pytest.mark.skipif(
    hosts.IS_KERAS2, reason="Keras 2.0 to 2.3 has neither AccumulationMonitor nor PythonGate"
)
@callbacks
def test_callbacks_give_one_warning(names):
    model = model_of()
    used = [getattr(hosts.accum, name)() for name in names]
    for _ in range(2):
        assert said(lambda: fit(model, MICRO, SIX, epochs=1, callbacks=used)) == 1


@pytest.mark.parametrize(
    "arguments, name",
    [({"accum_iters": 6}, None), ({"accum_iters": 1}, None), ({}, "ApplyPartialWindow")],
    ids=str,
)
def test_a_training_with_an_update_gives_no_warning(arguments, name):
    model = model_of(**arguments)
    used = [getattr(hosts.accum, name)()] if name else []
    assert said(lambda: fit(model, MICRO, SIX, epochs=1, callbacks=used)) == 0


@told
def test_a_window_that_closes_in_the_next_training():
    """The second training closes the first one's window, and gives no warning."""
    model = model_of(accum_iters=8)
    assert said(lambda: fit(model, MICRO, SIX, epochs=1)) == 1
    assert said(lambda: fit(model, MICRO, SIX, epochs=1)) == 0


@told
def test_updates_before_loading_do_not_count():
    model = model_of(accum_iters=4)
    fit(model, MICRO, SIX, epochs=1)
    other = model_of(accum_iters=9)
    state = model.optimizer.get_state()
    other.optimizer.set_state({**state, "accum_iters": 100, "window_length": 100})
    assert other.optimizer.completed_updates == 1
    assert said(lambda: fit(other, MICRO, SIX, epochs=1)) == 1
