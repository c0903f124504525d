"""Files that releases have written, read by this one: whatever host and backend wrote them."""

from pathlib import Path

import hosts
import numpy as np
import pytest
import training
from hosts import accum, keras
from training import LENGTH
from write_files import ROWS, STOP, WRITER, fresh, go_on

FILES = Path(__file__).parent / "files"
RELEASES = sorted(path.name for path in FILES.glob("[0-9]*"))
CLASSES = {name: getattr(accum, name) for name in accum.__dict__ if name.endswith("Accumulate")}

KERAS3 = ("keras3_jax", "keras3_tensorflow", "keras3_torch")
WRITERS = {*KERAS3, "tf_keras", "tf_keras_2_15"}
if hosts.IS_KERAS3:
    READ = [(writer, form) for writer in KERAS3 for form in ("keras", "h5", "weights.h5")]
else:
    # A `.keras` file names the package of its Keras, and 2.15 doesn't know layers of 2.21.
    READ = [(WRITER, "keras"), (WRITER, "h5")]
    if WRITER == "tf_keras":
        READ.append(("tf_keras_2_15", "h5"))
READ += [(writer, "state.npz") for writer in sorted(WRITERS)]

every_release = pytest.mark.parametrize("release", RELEASES)


@pytest.fixture(autouse=True)
def float32():
    keras.backend.set_floatx("float32")


def load(path, row, saved):
    if path.name.endswith(".npz"):  # the weights are the user's business
        model = fresh(row)
        model.set_weights(saved)
        model.optimizer.set_state(dict(np.load(path)))
    elif path.name.endswith(".weights.h5"):
        model = fresh(row)
        hosts.build(model)
        model.load_weights(path)
    else:
        model = keras.models.load_model(path, custom_objects=CLASSES)
    return model


@every_release
def test_all_are_kept(release):
    assert {path.name for path in (FILES / release).iterdir()} == WRITERS
    for writer in WRITERS:
        rows = {path.name.split(".")[0] for path in (FILES / release / writer).iterdir()}
        assert rows == set(ROWS)


@every_release
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("writer", "form"), READ)
def test_is_read(release, writer, form, row):
    """Its state and weights to the bit, and the weights it went on to as far as float32 goes."""
    folder = FILES / release / writer
    with np.load(folder / f"{row}.truth.npz") as file:
        truth = dict(file)
    count = len([name for name in truth if name.startswith("saved")])
    saved, end = ([truth[f"{when}_{i}"] for i in range(count)] for when in ("saved", "end"))
    model = load(folder / f"{row}.{form}", row, saved)
    hosts.build(model)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 2)
    for actual, expected in zip(model.get_weights(), saved):
        np.testing.assert_array_equal(actual, expected)
    state = model.optimizer.get_state()
    with np.load(folder / f"{row}.state.npz") as expected:
        assert set(state) == set(expected)
        for name in state:
            np.testing.assert_array_equal(state[name], expected[name], err_msg=name)

    go_on(model, truth["x"], truth["y"], STOP)
    assert model.optimizer.completed_updates == training.SAMPLES // training.BIG
    for actual, start, expected in zip(model.get_weights(), saved, end):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
        assert np.abs(actual - start).max() > 0.01, "a test of nothing"
    assert int(state["accum_iters"]) == LENGTH
