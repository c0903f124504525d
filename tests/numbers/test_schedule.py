"""Windows of other lengths as the number of updates grows: `accum_iters` is a schedule."""

import copy
import json
import pickle

import hosts
import numpy as np
import pytest
from cases import CASES, keras2_has_no, on_adam_and_amsgrad, thorough
from steps import assert_branches, assert_windows_equal_big_batches, gradients, made
from training import assert_equal, compiled, data, dense_model, state, weights

from keras_accum import AccumulationSchedule

LENGTHS = [1, 3, 3, 2, 2]  # of the windows, by the number of completed updates
SCHEDULE = AccumulationSchedule({0: 1, 1: 3, 3: 2})


def scheduled(**more):
    return hosts.ours("Adam", **CASES["adam"].arguments, accum_iters=SCHEDULE, **more)


@on_adam_and_amsgrad
@pytest.mark.usefixtures("every_gate")
def test_each_window_has_the_length_of_its_update(case):
    """In a step that is traced once."""
    assert [SCHEDULE(updates) for updates in range(5)] == LENGTHS
    ours, mine = made(hosts.ours(case.name, **case.arguments, accum_iters=SCHEDULE))
    stock, theirs = made(hosts.stock(case.name, **case.arguments))
    assert_windows_equal_big_batches(ours, stock, mine, theirs, gradients(LENGTHS))
    assert_branches(ours, mine)


X, Y = (np.concatenate([array, array])[: 2 * sum(LENGTHS)] for array in data())
ENDS = np.cumsum([0, *LENGTHS]) * 2  # the samples at which windows end


def fit(model):
    model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
    return model


def big_batches():
    model = compiled(dense_model(), hosts.stock("Adam", **CASES["adam"].arguments))
    for start, stop in zip(ENDS, ENDS[1:]):
        model.train_on_batch(X[start:stop], Y[start:stop])
    return model


def test_in_fit():
    model = fit(compiled(dense_model(), scheduled()))
    assert model.optimizer.completed_updates == len(LENGTHS)
    assert_equal(state(model), state(big_batches()))


@keras2_has_no("windows that end with an epoch")
def test_windows_that_outgrow_an_epoch_end_with_it():
    """Without a warning: the first ones were whole."""
    length, adam = AccumulationSchedule({0: 1, 2: 100}), CASES["adam"].arguments
    model = compiled(dense_model(), hosts.ours("Adam", **adam, accum_iters=length))
    model.fit(X[:10], Y[:10], batch_size=2, epochs=2, shuffle=False, verbose=0)
    reference = compiled(dense_model(), hosts.stock("Adam", **adam))
    for start, stop in (0, 2), (2, 4), (4, 10), (0, 10):
        reference.train_on_batch(X[start:stop], Y[start:stop])
    assert_equal(state(model), state(reference))


@thorough
@pytest.mark.skipif(not hosts.IS_TENSORFLOW or hosts.IS_KERAS2, reason="about tf.distribute")
def test_replicas(strategy):
    with strategy.scope():
        model = compiled(dense_model(), scheduled())
    fit(model)
    assert model.optimizer.completed_updates == len(LENGTHS)
    assert_equal(weights(model), weights(big_batches()))


def test_a_state_of_the_stock_optimizer_goes_on_with_its_window():
    """After one update, the next window has three micro-batches."""
    optimizer = scheduled()
    optimizer.set_state({"completed_updates": 1})
    assert optimizer.accum_iters == LENGTHS[1]
    other = hosts.ours("Adam", **CASES["adam"].arguments)
    compiled(dense_model(), other).train_on_batch(X[:2], Y[:2])
    ours = type(optimizer).from_optimizer(other, accum_iters=SCHEDULE)
    assert (ours.accum_iters, ours.completed_updates) == (LENGTHS[1], 1)


def test_copies_and_conversions_keep_it():
    optimizer = scheduled()
    for other in (
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
        type(optimizer).from_optimizer(optimizer, learning_rate=0.5),
    ):
        assert other.accum_iters == 1
        other.set_state({"completed_updates": 1})
        assert other.accum_iters == LENGTHS[1]
    assert type(optimizer).from_optimizer(optimizer, accum_iters=4).accum_iters == 4
    if not hosts.IS_KERAS2:  # which has no `to_stock`
        assert "accum_iters" not in optimizer.to_stock().get_config()


def test_a_config_has_it():
    optimizer = scheduled()
    config = json.loads(json.dumps(optimizer.get_config()))
    assert config["accum_iters"]["config"] == json.loads(json.dumps(SCHEDULE.get_config()))
    assert type(optimizer).from_config(config).get_config() == optimizer.get_config()


def test_accum_iters_of_a_schedule_cannot_be_set():
    optimizer = scheduled()
    said = r"constructed with an AccumulationSchedule.*from_optimizer.*accum_iters=3"
    with pytest.raises(AttributeError, match=said):
        optimizer.accum_iters = 3
    with pytest.raises(TypeError, match="`accum_iters` must be an integer >= 1"):
        hosts.ours("Adam", accum_iters=2).accum_iters = SCHEDULE
