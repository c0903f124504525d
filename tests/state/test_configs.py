"""An optimizer as a config, a pickle and a copy."""

import copy
import pickle

import hosts
import pytest
from cases import NO_DECAY, arguments_of, every_name, keras2_has_no
from hosts import accum, keras

WAYS = {
    "config": lambda optimizer: type(optimizer).from_config(optimizer.get_config()),
    "serialize": lambda o: keras.optimizers.deserialize(keras.optimizers.serialize(o)),
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "deepcopy": copy.deepcopy,
}
every_way = pytest.mark.parametrize("way", WAYS)


@every_way
@every_name
def test_every_argument(name, way):
    arguments = arguments_of(name)
    optimizer = hosts.ours(name, **arguments)
    config = optimizer.get_config()
    assert {argument: config[argument] for argument in arguments} == arguments
    again = WAYS[way](optimizer)
    assert type(again) is type(optimizer)
    assert again.get_config() == type(optimizer)(**config).get_config() == config


def test_all_reduce_in_a_config():
    """A host without all_reduce="per_window" still loads the config, with a warning."""
    config = hosts.ours("Adam", accum_iters=3, gate="conditional").get_config()
    assert config["all_reduce"] == "per_micro_batch"
    late = {**config, "all_reduce": "per_window"}
    if accum.AdamAccumulate.port_class.can_reduce_late:
        assert WAYS["config"](accum.AdamAccumulate(**late)).get_config() == late
    else:
        with pytest.warns(UserWarning, match="all_reduce='per_window' of.*ignored here"):
            assert accum.AdamAccumulate.from_config(late).get_config() == config


@keras2_has_no("schedules")
@every_way
@every_name
def test_a_schedule(name, way):
    if name in NO_DECAY:
        pytest.skip(f"the stock {name} of tf_keras takes no schedule")
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    optimizer = hosts.ours(name, learning_rate=schedule, accum_iters=3)
    config = WAYS[way](optimizer).get_config()
    assert config == optimizer.get_config() and type(config["learning_rate"]) is dict
