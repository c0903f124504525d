"""An optimizer as a config, a pickle and a copy."""

import copy
import pickle

import hosts
import pytest
import steps
from cases import NO_DECAY, arguments_of, every_name, keras2_has_no, needs_decay
from formats import assert_same
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


@every_way
@pytest.mark.parametrize("length", [1, 3, None])
def test_a_length_that_was_set(length, way):
    """A config and a copy say it. They have accumulators also for 1: other lengths may follow."""
    cls, optimizer = accum.AdamAccumulate, accum.AdamAccumulate(accum_iters=5)
    optimizer.accum_iters = length
    for again in (WAYS[way](optimizer), cls.from_optimizer(optimizer)):
        assert again.accum_iters == again.get_config()["accum_iters"] == length
        again.accum_iters = 2
    assert cls.from_optimizer(optimizer, accum_iters=7).accum_iters == 7


def test_the_length_1_that_was_set_in_a_window():
    cls, variables = accum.AdamAccumulate, steps.variables()
    optimizer = steps.go_on(cls(accum_iters=5), variables, stop=2)
    optimizer.accum_iters = 1
    again = cls.from_config(optimizer.get_config())
    again.set_state(optimizer.get_state())
    for each in (again, cls.from_optimizer(optimizer)):
        hosts.build_on(each, variables)
        assert_same(each.get_state(), optimizer.get_state())


# Configs with `clipnorm`, and if it is the norm of all gradients together, as in Keras 2.0 to 2.3.
ADAM = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "clipnorm": 0.5}
CLIPPED = {
    "a user": ("Adam", {"lr": 0.25, "clipnorm": 0.5}, False),
    "a user, with decay": ("Adam", {"lr": 0.25, "decay": 0.5, "clipnorm": 0.5}, False),
    "Keras 2.0": ("Adam", {"lr": 0.25, "decay": 0.0, **ADAM}, True),
    "Keras 2.3": ("Adam", {"learning_rate": 0.25, "decay": 0.0, "amsgrad": False, **ADAM}, True),
    "SGD": (
        "SGD",
        {"lr": 0.25, "momentum": 0.5, "decay": 0.0, "nesterov": True, "clipnorm": 0.5},
        True,
    ),
    "this Keras": ("Adam", None, False),
}
if hosts.IS_TF_KERAS:
    CLIPPED["Nadam"] = ("Nadam", {"lr": 0.25, "schedule_decay": 0.004, **ADAM}, True)


@needs_decay
@pytest.mark.parametrize("name, config, is_global", CLIPPED.values(), ids=CLIPPED)
def test_clipnorm_in_a_config(name, config, is_global):
    """Only a config of Keras 2.0 to 2.3 lacks `accum_iters` because its class didn't save it."""
    cls = getattr(accum, f"{name}Accumulate")
    config = cls(0.25, clipnorm=0.5).get_config() if config is None else config
    if is_global:
        with pytest.warns(UserWarning, match="didn't save accum_iters"):
            found = cls.from_config(config).get_config()
    else:
        found = cls.from_config(config).get_config()
    clips = {n: found[n] for n in ("clipnorm", "global_clipnorm") if found.get(n) is not None}
    assert clips == {"global_clipnorm" if is_global or hosts.IS_KERAS2 else "clipnorm": 0.5}
