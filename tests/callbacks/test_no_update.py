"""A training in which no window closes gives one warning."""

import warnings

import hosts
import pytest
from cases import keras2_has_no, quick_once
from training import MICRO, compiled, data, dense_model, fit

pytestmark = [quick_once, keras2_has_no("list of callbacks that is told")]

SAID = "ends with no update: 6 of 100 micro-batches"
SIX = [array[: 6 * MICRO] for array in data()]


def model_of(accum_iters=100, **arguments):
    optimizer = hosts.ours("SGD", accum_iters=accum_iters, **arguments)
    return compiled(dense_model(), optimizer, run_eagerly=True)


def said(model, **arguments):
    """The number of our warnings that a training gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(model, MICRO, SIX, **{"epochs": 1, **arguments})
    return sum("no update" in str(warning.message) for warning in found)


def test_it_points_at_the_line_of_the_user():
    """Not at a line of ours or of Keras."""
    with pytest.warns(UserWarning, match=SAID) as found:
        model_of().fit(*SIX, batch_size=MICRO, verbose=0)
    ours = [warning for warning in found if warning.category is UserWarning]
    assert [warning.filename for warning in ours] == [__file__]


def test_it_warns_inside_a_loss_scale_optimizer():
    optimizer = hosts.loss_scaled(hosts.ours("SGD", accum_iters=100), 4.0)
    assert said(compiled(dense_model(), optimizer, run_eagerly=True)) == 1


def test_which_trainings_warn():
    """Each that adds to the window and closes none, by its own number of updates."""
    close, monitor = hosts.accum.ApplyPartialWindow, hosts.accum.AccumulationMonitor
    model = model_of(20)
    assert [said(model, epochs=2), said(model, callbacks=[monitor()]), said(model)] == [1, 1, 0]
    assert said(model, callbacks=[close()]) == 0
    assert (said(model_of(1)), said(model_of(4))) == (0, 0)
    assert said(model_of(skip_norm=1e-9)) == 0  # all are dropped
    other = model_of(9)
    other.optimizer.build(other.trainable_variables)
    state = model.optimizer.get_state()
    other.optimizer.set_state({**state, "window_length": 100})
    assert other.optimizer.completed_updates == 2
    assert said(other) == 1
