"""Files that another Keras wrote are read, or refused with a message that names the remedy."""

import json
import shutil

import h5py
import hosts
import numpy as np
import pytest
from cases import needs_decay
from hosts import accum, keras
from training import LENGTH, go_on
from write_files import STOP

pytestmark = pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`")

FILES = hosts.TESTS / "files"
CLASSES = {name: getattr(accum, name) for name in accum.__dict__ if name.endswith("Accumulate")}


@pytest.fixture(autouse=True)
def float32():
    hosts.set_floatx("float32")


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about files of tf_keras that Keras 3 loads")
@pytest.mark.parametrize("writer, row", [("tf_keras", "rmsprop_both"), ("tf_keras_2_15", "adam")])
def test_hdf5_of_tf_keras(writer, row, tmp_path):
    """Everything but the loss, whose config Keras 3 can't read."""
    folder = FILES / "0.1.0" / writer
    path = shutil.copy(folder / f"{row}.h5", tmp_path)
    with h5py.File(path, "r+") as file:
        training = json.loads(file.attrs["training_config"])
        training["loss"] = "mse"
        file.attrs["training_config"] = json.dumps(training).encode()
    names = {**CLASSES, "mse": keras.losses.mean_squared_error}
    model = keras.models.load_model(path, custom_objects=names)
    hosts.build(model)
    with np.load(folder / f"{row}.state.npz") as expected:
        state = model.optimizer.get_state()
        assert set(state) == set(expected)
        for name in state:
            np.testing.assert_array_equal(state[name], expected[name], err_msg=name)
    with np.load(folder / f"{row}.truth.npz") as file:
        truth = dict(file)
    go_on(model, STOP, arrays=(truth["x"], truth["y"]))
    for i, w in enumerate(model.get_weights()):
        np.testing.assert_allclose(w, truth[f"end_{i}"], rtol=1e-5, atol=1e-6)
        assert np.abs(w - truth[f"saved_{i}"]).max() > 0.01, "hardly moved: nothing is tested"


@pytest.mark.skipif(hosts.IS_NEW_STYLE, reason="the newer style takes no list of the legacy style")
@pytest.mark.parametrize("built", [True, False])
def test_a_list_of_tf_keras_without_slots(built):
    """The list is as long as Keras 3's own, with one more counter in place of the learning rate."""
    optimizer = hosts.ours("SGD", learning_rate=0.5, accum_iters=LENGTH)
    vs = [hosts.variable(np.ones(2), "a"), hosts.variable(np.ones((2, 3)), "b")]
    if built:
        hosts.build_on(optimizer, vs)
    sums = [np.full(2, 5, "float32"), np.full((2, 3), 6, "float32")]
    # Two steps counted, one of which a LossScaleOptimizer skipped.
    counters = [np.asarray(count, "int64") for count in (2, 1, 3, LENGTH, 7, 1)]
    optimizer.set_weights([*counters, *sums])
    assert (optimizer.completed_updates, optimizer.window_position) == (1, 3)
    assert optimizer.accum_iters == 7
    hosts.build_on(optimizer, vs)
    state = optimizer.get_state()
    expected = {
        "state_format": 1,
        "completed_updates": 1,
        "learning_rate": 0.5,
        "window_position": 3,
        "window_length": LENGTH,
        "accum_iters": 7,
        "accumulator.0": sums[0],
        "accumulator.1": sums[1],
    }
    assert set(state) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(state[name], expected[name], err_msg=name)


@needs_decay
@pytest.mark.parametrize("decay", [0.5, 0.0])
def test_rmsprop_of_keras_2(decay, tmp_path):
    """Keras 2.2 doesn't save RMSprop's count of updates, on which the decayed rate depends."""
    path = shutil.copy(FILES / "keras_2_2_4" / "stock_rmsprop.h5", tmp_path)
    with h5py.File(path, "r+") as file:
        training = json.loads(file.attrs["training_config"])
        training["optimizer_config"]["config"]["decay"] = decay
        file.attrs["training_config"] = json.dumps(training).encode()
    names = {"rmsprop": accum.RMSpropAccumulate.with_accum_iters(4, stock=True)}

    def load():
        return keras.models.load_model(path, custom_objects=names)

    with pytest.warns(UserWarning, match="number of updates that RMSprop.*'completed_updates': n"):
        model = load()
    optimizer = model.optimizer
    assert optimizer.completed_updates == 0
    hosts.build(model)
    optimizer.set_state({**optimizer.get_state(), "completed_updates": 7})
    assert optimizer.completed_updates == 7
