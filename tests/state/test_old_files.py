"""HDF5 files of Keras 2.2.4: from the AdamAccumulate class on the web, and from stock optimizers.

`files/keras_2_2_4/README.md` describes their contents. Everything is float32.
"""

import json
import shutil
from pathlib import Path

import h5py
import hosts
import numpy as np
import pytest
from cases import each_version, thorough
from hosts import accum, keras

if hosts.IS_NEW_STYLE:
    pytest.skip("files of Keras 2 have optimizers of the legacy style", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`"),
    pytest.mark.filterwarnings("ignore:This file doesn't hold the number of updates that RMSprop"),
]

FILES = hosts.TESTS / "files" / "keras_2_2_4"
STOCK = {"stock_adam": "Adam", "stock_sgd_nesterov": "SGD", "stock_rmsprop": "RMSprop"}
Adam = accum.AdamAccumulate


@pytest.fixture(autouse=True)
def float32():
    hosts.set_floatx("float32")


@pytest.fixture
def copy(tmp_path):
    """Return a function that copies the file of a name, for editing, and returns the path."""
    return lambda name: Path(shutil.copy(FILES / f"{name}.h5", tmp_path))


def load(path, **custom_objects):
    return mended(keras.models.load_model(str(path), custom_objects=custom_objects))


def mended(model):
    """Keras 3 reads the input shape of an old Sequential with one dimension too many."""
    if not hosts.IS_KERAS3:
        return model
    new = keras.Sequential([keras.Input((6,)), *model.layers])
    new.compile(model.optimizer, model.loss)
    return new


def truth(name):
    with np.load(FILES / f"{name}.npz") as file:
        return dict(file)


def rows(file, step, size=4):
    return file["x"][size * step : size * (step + 1)], file["y"][size * step : size * (step + 1)]


def weights_at(file, step):
    """The true weights after `step` steps."""
    further = step - int(file["n_micro_at_save"])
    return [file[f"cont_{i}"][further - 1] if further else file[f"saved_{i}"] for i in range(4)]


def assert_close(actual, expected, atol=1e-6):
    for some, others in zip(actual, expected):
        np.testing.assert_allclose(some, others, rtol=0, atol=atol)


def assert_goes_on_as(model, name, atol=1e-6, parts=1):
    """After each further step, made in `parts`, the weights equal the recorded ones."""
    file = truth(name)
    start = int(file["n_micro_at_save"])
    assert_close(model.get_weights(), weights_at(file, start), atol=0)
    for step in range(start, start + int(file["n_micro_further"])):
        for part in range(parts):
            model.train_on_batch(*rows(file, step * parts + part, 4 // parts))
        assert_close(model.get_weights(), weights_at(file, step + 1), atol)
    assert np.abs(model.get_weights()[0] - file["saved_0"]).max() > 1e-3, "nothing is tested"


# -- the AdamAccumulate class ------------------------------------------------------------------


def assert_at_the_boundary(model, optimizer):
    counters = optimizer.completed_updates, optimizer.window_position, optimizer.accum_iters
    assert counters == (2, 0, 5)
    if hosts.IS_KERAS3:  # a list has no names before
        optimizer.build(model.trainable_variables)
    file, state = truth("adamaccumulate_boundary"), optimizer.get_state()
    for i in range(4):
        np.testing.assert_array_equal(state[f"Adam.momentum.{i}"], file[f"opt_{1 + i}"])
        np.testing.assert_array_equal(state[f"Adam.velocity.{i}"], file[f"opt_{5 + i}"])


def test_continues_with_accum_iters_given():
    path = FILES / "adamaccumulate_boundary.h5"
    model = load(path, AdamAccumulate=Adam.with_accum_iters(5))
    assert_at_the_boundary(model, model.optimizer)
    assert_goes_on_as(model, "adamaccumulate_boundary")


def test_without_accum_iters_every_micro_batch_is_an_update():
    """Another `accum_iters` would change what the file's count means, so it is refused later."""
    path = FILES / "adamaccumulate_boundary.h5"
    with pytest.warns(UserWarning, match=r"accum_iters=1 is used.*with_accum_iters\(5\)") as record:
        model = keras.models.load_model(str(path), custom_objects={"AdamAccumulate": Adam})
    assert sum("accum_iters" in str(warning.message) for warning in record) == 1
    optimizer = model.optimizer
    assert (optimizer.completed_updates, optimizer.accum_iters) == (10, 1)
    with pytest.raises(ValueError, match=r"counts micro-batches.*with_accum_iters\(5\)"):
        Adam.from_optimizer(optimizer, accum_iters=5)
    # Keras 2 makes the train step when it loads, and so refers to `from_optimizer`.
    with pytest.raises(ValueError, match=r"with_accum_iters\(5\)|from_optimizer"):
        optimizer.accum_iters = 5
    assert (optimizer.completed_updates, optimizer.accum_iters) == (10, 1)


def test_an_open_window_is_replaced_by_a_fresh_one():
    """From there on it equals stock Adam on batches of 20."""
    path, classes = FILES / "adamaccumulate_midwindow.h5", Adam.with_accum_iters(5)
    with pytest.warns(UserWarning, match="3 of 5 micro-batches into a window"):
        model, twin = load(path, AdamAccumulate=classes), load(path, AdamAccumulate=classes)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (2, 0)
    hosts.build(twin)
    stock = twin.optimizer.to_stock()
    twin.compile(hosts.in_order(stock) if hosts.IS_KERAS2 else stock, twin.loss)
    file = truth("adamaccumulate_midwindow")
    for first in (13, 18):
        before = model.get_weights()
        for step in range(first, first + 4):
            model.train_on_batch(*rows(file, step))
            assert_close(model.get_weights(), before, atol=0)
        model.train_on_batch(*rows(file, first + 4))
        big = [np.concatenate(arrays) for arrays in zip(*(rows(file, first + i) for i in range(5)))]
        twin.train_on_batch(*big)
        assert_close(model.get_weights(), twin.get_weights())
        assert np.abs(model.get_weights()[0] - before[0]).max() > 1e-3


def edit(path, **config):
    with h5py.File(path, "r+") as file:
        training = json.loads(file.attrs["training_config"])
        training["optimizer_config"]["config"].update(config)
        file.attrs["training_config"] = json.dumps(training).encode()


def replay(file, steps, decay=0.0, amsgrad=False, clipnorm=None):
    """Compute the old class's Adam in float64, from the file's moments and two updates on.

    One exception: `clipnorm` clips the big batch here, by the norm of all gradients together.
    """
    moments = [file[f"opt_{1 + i}"].astype(float) for i in range(4)]
    squares = [file[f"opt_{5 + i}"].astype(float) for i in range(4)]
    hats = [square * 2 for square in squares]
    w = [file[f"saved_{i}"].astype(float) for i in range(4)]
    for update in range(2, 2 + steps):
        x, y = rows(file, update, 20)
        hidden = x @ w[0] + w[1]
        active = np.maximum(hidden, 0)
        out = np.exp(active @ w[2] + w[3])
        error = (out / out.sum(1, keepdims=True) - y) / len(x)
        back = error @ w[2].T * (hidden > 0)
        grads = [x.T @ back, back.sum(0), active.T @ error, error.sum(0)]
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        if clipnorm is not None:
            grads = [g * min(clipnorm / norm, 1) for g in grads]
        t = update + 1
        rate = 0.01 / (1 + decay * update) * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        for i, g in enumerate(grads):
            moments[i] = 0.9 * moments[i] + 0.1 * g
            squares[i] = 0.999 * squares[i] + 0.001 * g * g
            hats[i] = np.maximum(hats[i], squares[i]) if amsgrad else squares[i]
            w[i] = w[i] - rate * moments[i] / (np.sqrt(hats[i]) + 1e-7)
        norms = np.sqrt((w[0] ** 2).sum(0))
        w[0] = w[0] * np.clip(norms, 0, 0.8) / (norms + 1e-7)
    return w


@thorough
@each_version
@pytest.mark.parametrize(
    "variant", [{}, {"decay": 0.5}, {"amsgrad": True}, {"clipnorm": 0.05}], ids=str
)
def test_variants_of_the_old_class(variant, copy):
    """Ten further steps equal the replay. With amsgrad, the class saved real arrays at the end."""
    path = copy("adamaccumulate_boundary")
    file = truth("adamaccumulate_boundary")
    edit(path, **variant)
    if "amsgrad" in variant:
        with h5py.File(path, "r+") as edited:
            group = edited["optimizer_weights"]
            for i, name in enumerate(group.attrs["weight_names"][9:]):
                del group[name]
                group[name] = 2 * file[f"opt_{5 + i}"]
    model = load(path, AdamAccumulate=Adam.with_accum_iters(5))
    for step in range(10, 20):
        model.train_on_batch(*rows(file, step))
    assert_close(model.get_weights(), replay(file, 2, **variant))
    if variant:
        assert np.abs(model.get_weights()[0] - replay(file, 2)[0]).max() > 1e-4


def test_amsgrad_needs_its_arrays(copy):
    """Placeholders aren't `velocity_hat`: a file of plain Adam can't continue as AMSGrad."""
    path = copy("adamaccumulate_boundary")
    edit(path, amsgrad=True)
    with pytest.raises(accum.StateError, match=r"AMSGrad.velocity_hat.0 is \(1,\)|shape"):
        model = load(path, AdamAccumulate=Adam.with_accum_iters(5))
        hosts.build(model)


# -- stock optimizers --------------------------------------------------------------------------


def loader(name, accum_iters):
    cls = getattr(accum, f"{STOCK[name]}Accumulate")
    return {STOCK[name].lower(): cls.with_accum_iters(accum_iters, stock=True)}


def tolerance(name):
    # RMSprop's epsilon is inside the root on Keras 3.
    return 5e-6 if hosts.IS_KERAS3 and name == "stock_rmsprop" else 1e-6


@thorough
@each_version
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", STOCK)
def test_stock_files_continue(name, parts):
    """With the batches as they were, and with each batch of four in four micro-batches."""
    model = load(FILES / f"{name}.h5", **loader(name, parts))
    assert model.optimizer.completed_updates == (0 if name == "stock_rmsprop" else 7)
    assert_goes_on_as(model, name, tolerance(name), parts)


@pytest.mark.skipif(
    hosts.IS_KERAS3, reason="Keras 3 can't load stock optimizers of Keras 2.2: it doesn't know `lr`"
)
@pytest.mark.parametrize("name", STOCK)
def test_stock_files_by_from_optimizer(name):
    model = load(FILES / f"{name}.h5")
    cls = getattr(accum, f"{STOCK[name]}Accumulate")
    model.compile(cls.from_optimizer(model.optimizer, accum_iters=4), model.loss)
    assert_goes_on_as(model, name, parts=4)


def test_with_accum_iters_must_agree_with_the_file():
    config = Adam(accum_iters=3).get_config()
    assert Adam.with_accum_iters(3).from_config(config).accum_iters == 3
    with pytest.raises(ValueError, match=r"with_accum_iters\(5\).*holds accum_iters=3"):
        Adam.with_accum_iters(5).from_config(config)
    with pytest.raises(ValueError, match="accum_iters=0"):
        Adam.with_accum_iters(0)
