"""An optimizer as a config, a pickle and a copy."""

import copy
import pickle

import hosts
import numpy as np
import pytest
from cases import (
    NO_DECAY,
    arguments_of,
    every_name,
    keras2_has_no,
    on_adam_and_amsgrad,
    quick_first,
)
from hosts import accum, keras
from training import (
    LENGTH,
    assert_moved,
    compiled,
    dense_model,
    go_on,
    weights,
)

if not hosts.IS_KERAS2:
    SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


def through_config(optimizer):
    return type(optimizer).from_config(optimizer.get_config())


def through_constructor(optimizer):
    return type(optimizer)(**optimizer.get_config())


def through_serialize(optimizer):
    return keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))


def through_pickle(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


WAYS = [through_config, through_serialize, through_pickle, copy.deepcopy]


@pytest.mark.parametrize("way", [*WAYS, through_constructor])
@every_name
def test_every_argument(name, way):
    arguments = arguments_of(name)
    optimizer = hosts.ours(name, **arguments)
    config = optimizer.get_config()
    assert {argument: config[argument] for argument in arguments} == arguments
    again = way(optimizer)
    assert type(again) is type(optimizer)
    assert again.get_config() == config


def test_all_reduce_in_a_config():
    """A host without all_reduce="per_window" still loads the config, with a warning."""
    config = hosts.ours("Adam", accum_iters=3, gate="conditional").get_config()
    assert config["all_reduce"] == "per_micro_batch"
    late = {**config, "all_reduce": "per_window"}
    if accum.AdamAccumulate.port_class.can_reduce_late:
        assert through_config(accum.AdamAccumulate(**late)).get_config() == late
    else:
        with pytest.warns(UserWarning, match="all_reduce='per_window' of.*ignored here"):
            assert accum.AdamAccumulate.from_config(late).get_config() == config


@keras2_has_no("schedules")
@pytest.mark.parametrize("way", WAYS)
@every_name
def test_a_schedule(name, way):
    if name in NO_DECAY:
        pytest.skip(f"the stock {name} of tf_keras takes no schedule")
    optimizer = hosts.ours(name, learning_rate=SCHEDULE, accum_iters=3)
    again = way(optimizer)
    assert again._accumulation.port.rate_argument(again), "the schedule is a config"
    assert again.get_config() == optimizer.get_config()
    assert type(again.get_config()["learning_rate"]) is dict
    again = again.get_config()["learning_rate"]["config"]
    assert again == {**SCHEDULE.get_config(), **again}


def everything(model):
    return {**weights(model), **model.optimizer.get_state()}


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for some, (name, others) in zip(actual.values(), expected.items()):
        np.testing.assert_array_equal(some, others, err_msg=name)


@quick_first("way", [through_pickle, copy.deepcopy])
@on_adam_and_amsgrad
def test_a_copy_has_the_state(case, way):
    """Copied in a window; the copy continues training and the original stays as it was."""
    optimizer = hosts.ours(case.name, accum_iters=LENGTH, **case.arguments)
    model = go_on(compiled(dense_model(), optimizer), 0, LENGTH + 2)
    before, values = everything(model), model.get_weights()
    again, another = way(optimizer), way(optimizer)
    assert (again.completed_updates, again.window_position) == (1, 2)
    compiled(model, again)
    model.set_weights(values)
    go_on(model, LENGTH + 2, 3 * LENGTH)
    end = everything(model)

    assert_same({**before, **optimizer.get_state()}, before)
    # Keras 2 on TensorFlow 1 starts afresh with an optimizer that is compiled again.
    compiled(model, another if hosts.IS_KERAS2 else optimizer)
    model.set_weights(values)
    start = weights(model)
    assert_same(everything(go_on(model, LENGTH + 2, 3 * LENGTH)), end)
    assert_moved(start, weights(model), by=0.01)
