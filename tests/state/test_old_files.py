"""HDF5 files of Keras 2.2.4, all float32, which files/keras_2_2_4/README.md describes."""

import json
import shutil

import h5py
import hosts
import numpy as np
import pytest
from cases import each_version, keras2_has_no, quick_once_on_keras3, thorough
from hosts import accum, keras

if hosts.IS_NEW_STYLE:
    pytest.skip("files of Keras 2 have optimizers of the legacy style", allow_module_level=True)

ignored = pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`")
pytestmark = [quick_once_on_keras3, ignored, pytest.mark.usefixtures("float32")]

FILES = hosts.TESTS / "files" / "keras_2_2_4"
STOCK = {"stock_adam": "Adam", "stock_sgd_nesterov": "SGD", "stock_rmsprop": "RMSprop"}
Adam = accum.AdamAccumulate


def load(path, **custom_objects):
    model = keras.models.load_model(str(path), custom_objects=custom_objects)
    if not hosts.IS_KERAS3:
        return model
    # Keras 3 reads the input shape of an old Sequential with one dimension too many.
    new = keras.Sequential([keras.Input((6,)), *model.layers])
    new.compile(model.optimizer, model.loss)
    return new


def load_of(name, accum_iters=5):
    """Load one of the files with our class."""
    path = FILES / f"{name}.h5"
    if name not in STOCK:
        return load(path, AdamAccumulate=Adam.with_accum_iters(accum_iters))
    cls = getattr(accum, f"{STOCK[name]}Accumulate")
    names = STOCK[name].lower(), STOCK[name]  # Keras up to 3.15, and Keras 3.16
    loader = dict.fromkeys(names, cls.with_accum_iters(accum_iters, stock=True))
    if name != "stock_rmsprop":
        return load(path, **loader)
    with pytest.warns(UserWarning, match="number of updates that RMSprop.*'completed_updates': n"):
        return load(path, **loader)


def truth(name):
    with np.load(FILES / f"{name}.npz") as file:
        return dict(file)


def rows(file, step, size=4):
    return file["x"][size * step : size * (step + 1)], file["y"][size * step : size * (step + 1)]


def assert_close(actual, expected, atol=1e-6):
    for some, others in zip(actual, expected):
        np.testing.assert_allclose(some, others, rtol=0, atol=atol)


def assert_goes_on_as(model, name, parts=1):
    """After each further step, made in `parts`, the weights equal the recorded ones."""
    file = truth(name)
    start = int(file["n_micro_at_save"])
    # RMSprop's epsilon is inside the root on Keras 3.
    atol = 5e-6 if hosts.IS_KERAS3 and name == "stock_rmsprop" else 1e-6
    assert_close(model.get_weights(), [file[f"saved_{i}"] for i in range(4)], atol=0)
    for further in range(int(file["n_micro_further"])):
        for part in range(parts):
            model.train_on_batch(*rows(file, (start + further) * parts + part, 4 // parts))
        assert_close(model.get_weights(), [file[f"cont_{i}"][further] for i in range(4)], atol)
    assert np.abs(model.get_weights()[0] - file["saved_0"]).max() > 1e-3, "nothing is tested"


def test_continues_with_accum_iters_given():
    model = load_of("adamaccumulate_boundary")
    assert (model.optimizer.completed_updates, model.optimizer.accum_iters) == (2, 5)
    assert_goes_on_as(model, "adamaccumulate_boundary")


def test_without_accum_iters_every_micro_batch_is_an_update():
    """Another `accum_iters` would change what the file's count means, so it is refused later."""
    path = FILES / "adamaccumulate_boundary.h5"
    with pytest.warns(UserWarning, match=r"accum_iters=1 is used.*with_accum_iters\(5\)"):
        model = keras.models.load_model(str(path), custom_objects={"AdamAccumulate": Adam})
    optimizer = model.optimizer
    assert (optimizer.completed_updates, optimizer.accum_iters) == (10, 1)
    with pytest.raises(ValueError, match=r"counts micro-batches.*with_accum_iters\(5\)"):
        Adam.from_optimizer(optimizer, accum_iters=5)
    assert (optimizer.completed_updates, optimizer.accum_iters) == (10, 1)


@keras2_has_no("to_stock")
def test_an_open_window_is_replaced_by_a_fresh_one():
    """From there on it equals stock Adam on batches of 20."""
    with pytest.warns(UserWarning, match="3 of 5 micro-batches into a window"):
        model, twin = load_of("adamaccumulate_midwindow"), load_of("adamaccumulate_midwindow")
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (2, 0)
    hosts.build(twin)
    twin.compile(twin.optimizer.to_stock(), twin.loss)
    file, before = truth("adamaccumulate_midwindow"), model.get_weights()
    batches = [rows(file, step) for step in range(13, 18)]
    for batch in batches:
        assert_close(model.get_weights(), before, atol=0)
        model.train_on_batch(*batch)
    twin.train_on_batch(*map(np.concatenate, zip(*batches)))
    assert_close(model.get_weights(), twin.get_weights())
    assert np.abs(model.get_weights()[0] - before[0]).max() > 1e-3


# What the class saved after the moments, and an argument of its config. With amsgrad, the class
# saved real arrays at the end, and else placeholders.
VARIANTS = {"decay": 0.5, "clipnorm": 0.05, "amsgrad": True}


@pytest.mark.parametrize("argument", VARIANTS)
def test_variants_of_the_old_class(argument, tmp_path):
    """The optimizer has the argument and the arrays: a file of Adam can't continue as AMSGrad."""
    path = shutil.copy(FILES / "adamaccumulate_boundary.h5", tmp_path)
    expected, loader = truth("adamaccumulate_boundary"), Adam.with_accum_iters(5)
    with h5py.File(path, "r+") as file:
        training = json.loads(file.attrs["training_config"])
        training["optimizer_config"]["config"][argument] = VARIANTS[argument]
        file.attrs["training_config"] = json.dumps(training).encode()
    if argument == "amsgrad":
        with pytest.raises(accum.StateError, match=r"AMSGrad.velocity_hat.0 is \(1,\)|shape"):
            hosts.build(load(path, AdamAccumulate=loader))
        with h5py.File(path, "r+") as file:
            group = file["optimizer_weights"]
            for i, name in enumerate(group.attrs["weight_names"][9:]):
                del group[name]
                group[name] = expected[f"opt_{9 + i}"] = 2 * expected[f"opt_{5 + i}"]
    model = load(path, AdamAccumulate=loader)
    hosts.build(model)
    # In Keras 2, `clipnorm` is the norm of all gradients together.
    name = "global_clipnorm" if argument == "clipnorm" else argument
    assert model.optimizer.get_config()[name] == VARIANTS[argument]
    state = model.optimizer.get_state()
    assert (state["completed_updates"], state["window_position"]) == (2, 0)
    names = sorted(name for name in state if name.startswith(("Adam.", "AMSGrad.")))
    assert len(names) == (12 if argument == "amsgrad" else 8)
    for place, name in enumerate(names):
        np.testing.assert_array_equal(state[name], expected[f"opt_{1 + place}"], err_msg=name)


@thorough
@each_version
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", STOCK)
def test_stock_files_continue(name, parts):
    """With the batches as they were, and with each batch of four in four micro-batches."""
    model = load_of(name, parts)
    # Keras 2.2 didn't save RMSprop's count of updates.
    assert model.optimizer.completed_updates == (0 if name == "stock_rmsprop" else 7)
    assert_goes_on_as(model, name, parts)


def test_with_accum_iters_must_agree_with_the_file():
    config = Adam(accum_iters=3).get_config()
    assert Adam.with_accum_iters(3).from_config(config).accum_iters == 3
    with pytest.raises(ValueError, match=r"with_accum_iters\(5\).*holds accum_iters=3"):
        Adam.with_accum_iters(5).from_config(config)
    with pytest.raises(ValueError, match="accum_iters=0"):
        Adam.with_accum_iters(0)
