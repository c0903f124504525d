"""An optimizer as a config, a pickle and a copy."""

import contextlib
import copy
import pickle
import threading

import hosts
import pytest
import steps
import training
from cases import NO_DECAY, arguments_of, every_name, keras2_has_no, needs_decay, once_on_keras3
from formats import assert_same
from hosts import accum, keras

pytestmark = once_on_keras3

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


@pytest.mark.skipif(not hosts.IS_LEGACY or "tf_keras" != keras.__name__, reason="of tf_keras")
def test_a_class_that_is_no_longer_registered(tmp_path, monkeypatch):
    """The remedy of docs/install.md, where tf_keras looks for another module."""
    path, registered = str(tmp_path / "model.keras"), keras.utils.get_custom_objects()
    training.compiled(training.dense_model(), hosts.ours("Adam", accum_iters=3)).save(path)
    for name in list(registered):
        monkeypatch.delitem(registered, name)
    with pytest.raises(TypeError, match="module tf_keras_accum.tf_keras.optimizers cannot be imp"):
        keras.models.load_model(path)
    keras.utils.register_keras_serializable("keras_accum")(accum.AdamAccumulate)
    assert keras.models.load_model(path).optimizer.accum_iters == 3


def test_all_reduce_in_a_config():
    """Version 0.3 had this argument. The numbers are the same without it."""
    config = hosts.ours("Adam", accum_iters=3, gate="conditional").get_config()
    of_0_3 = {**config, "all_reduce": "per_window"}
    assert accum.AdamAccumulate.from_config(of_0_3).get_config() == config


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
    told = pytest.warns(UserWarning, match="`apply_partial_window` can update")
    with told if length is None else contextlib.nullcontext():
        optimizer.accum_iters = length
    for again in (WAYS[way](optimizer), cls.from_optimizer(optimizer)):
        assert again.accum_iters == again.get_config()["accum_iters"] == length
        again.accum_iters = 2
    assert cls.from_optimizer(optimizer, accum_iters=7).accum_iters == 7


def test_the_length_1_that_was_set_in_a_window():
    variables = steps.variables()
    optimizer = steps.take_steps(hosts.ours("Adam", accum_iters=5), variables, stop=2)
    optimizer.accum_iters = 1
    again = WAYS["config"](optimizer)
    again.set_state(optimizer.get_state())
    for each in (again, type(optimizer).from_optimizer(optimizer)):
        hosts.build_on(each, variables)
        assert_same(each.get_state(), optimizer.get_state())


CLIPPED = {"lr": 0.25, "clipnorm": 0.5}
ADAM = {**CLIPPED, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
OF_OTHERS = [CLIPPED, {**CLIPPED, "decay": 0.5}, {**ADAM, "decay": 0.5, "name": "of_tf_keras"}]
OF_KERAS_2 = {
    "Adam": {**ADAM, "decay": 0.0},
    "SGD": {**CLIPPED, "momentum": 0.5, "decay": 0.0, "nesterov": True},
    "Nadam": {**ADAM, "schedule_decay": 0.004},
}
if not hosts.IS_TF_KERAS:  # others have no such argument, or no such optimizer
    del OF_KERAS_2["Nadam"]
if hosts.IS_KERAS2:  # which has no names
    del OF_OTHERS[-1]


@needs_decay
def test_clipnorm_in_a_config():
    """It was the norm of all gradients in Keras 2.0 to 2.3, whose configs lack `accum_iters`."""
    for config in OF_OTHERS:
        found = accum.AdamAccumulate.from_config(config).get_config()
        assert found["global_clipnorm" if hosts.IS_KERAS2 else "clipnorm"] == 0.5
    for name, config in OF_KERAS_2.items():
        with pytest.warns(UserWarning, match="didn't save accum_iters"):
            found = getattr(accum, f"{name}Accumulate").from_config(config).get_config()
        assert found["global_clipnorm"] == 0.5 and found.get("clipnorm") is None


class Watched(accum.AdamAccumulate):
    """Tells what a step in another thread would see while the config is read."""

    def get_config(self):
        def step():
            seen = [self.window_transforms, self.accum_iters]
            with pytest.raises(ValueError, match="A config or a file can't hold a function"):
                accum.AdamAccumulate.get_config(self)
            self.seen.append(seen)

        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        return super().get_config()


def test_a_copy_changes_nothing_in_another_thread():
    optimizer = Watched(accum_iters=3, window_transforms=[half])
    vars(optimizer)["seen"] = []
    copy_of_it = accum.AdamAccumulate.from_optimizer(optimizer)
    assert vars(optimizer)["seen"] == [[(half,), 3]]
    assert (copy_of_it.window_transforms, copy_of_it.accum_iters) == ((half,), 3)


def half(gradients, variables):
    return [gradient / 2 for gradient in gradients]
