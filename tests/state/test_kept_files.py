"""This version reads the files of all releases, from every host and backend."""

import hosts
import numpy as np
import pytest
import training
from cases import CASES, each_version, once_on_keras3, thorough
from hosts import accum, keras
from training import LENGTH, go_on
from write_files import (
    STOP,
    WRITER,
    accumulate,
    adam,
    checkpoints_of,
    fresh,
    fresh_adam,
    micro_batches,
    rows_of,
    step,
)

pytestmark = pytest.mark.skipif(
    hosts.IS_NEW_STYLE, reason="the tests of tf_keras's legacy style read the files of both styles"
)

FILES = hosts.TESTS / "files"
RELEASES = sorted(path.name for path in FILES.glob("[0-9]*"))
CLASSES = {name: getattr(accum, name) for name in accum.__dict__ if name.endswith("Accumulate")}

KERAS3 = ("keras3_jax", "keras3_tensorflow", "keras3_torch")
KERAS2 = ("keras2_2_2", "keras2_2_3")
WRITERS = {*KERAS3, *KERAS2, "tf_keras", "tf_keras_2_15"}
READ = [(writer, "h5") for writer in KERAS2]
if hosts.IS_KERAS3:
    READ += [(writer, form) for writer in KERAS3 for form in ("keras", "h5", "weights.h5")]
    CLASSES["mse"] = keras.losses.mean_squared_error  # Keras 3 doesn't know the short name in HDF5
elif hosts.IS_TF_KERAS:
    # A `.keras` file names its Keras's package, and 2.15 doesn't know layers of 2.21.
    READ += [(WRITER, "keras"), (WRITER, "h5")]
    if WRITER == "tf_keras":
        READ.append(("tf_keras_2_15", "h5"))
READ += [(writer, "state.npz") for writer in sorted(WRITERS)]
READ = [
    (release, writer, form, row)
    for release in RELEASES
    for writer, form in READ
    for row in rows_of(writer, release)
    if row in CASES  # RMSprop of Keras 2.2 and 2.3 has no momentum
    # Keras 3's Nadam has no `schedule_decay`, which a file of Keras 2 gives.
    and not (hosts.IS_KERAS3 and writer in KERAS2 and (form, row) == ("h5", "nadam"))
    and (FILES / release / writer / f"{row}.{form}").exists()
]

# A checkpoint is read before or after the optimizer is built.
CHECKPOINTS = [
    (release, writer, form, row)
    for release in RELEASES
    for writer in ([WRITER, "tf_keras_2_15"] if WRITER == "tf_keras" else [WRITER])
    for row, forms in checkpoints_of(writer, release).items()
    for form in [*forms, "checkpoint_before_building"]
    if any((FILES / release / writer).glob(f"{row}.{form.partition('_before')[0]}*"))
]


@pytest.fixture(autouse=True)
def float32():
    hosts.set_floatx("float32")


def load(path, row, saved):
    if path.name.endswith(".npz"):  # the state doesn't include the weights
        model = fresh(row)
        model.set_weights(saved)
        model.optimizer.set_state(dict(np.load(path)))
    elif path.name.endswith(".weights.h5"):
        model = fresh(row)
        hosts.build(model)
        model.load_weights(path)
    else:
        model = keras.models.load_model(str(path), custom_objects=CLASSES)
    return model


@pytest.mark.parametrize("release", RELEASES)
def test_the_files_of_a_release(release):
    """A dozen models of each release are kept, from every writer."""
    assert {path.name for path in (FILES / release).iterdir()} == WRITERS
    paths = list((FILES / release).glob("*/*"))
    models = [path for path in paths if path.suffix not in (".npz", ".data-00000-of-00001")]
    assert len(models) == 12
    truths = {path.parent / path.name.split(".")[0] for path in paths if ".truth" in path.name}
    assert {path.parent / path.name.split(".")[0] for path in models} == truths


# Keras 3 warns about the one-element list of inputs in Keras 2.2's and 2.3's files.
@thorough
@each_version
@once_on_keras3
@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match")
@pytest.mark.parametrize(("release", "writer", "form", "row"), READ)
def test_a_kept_file_is_read(release, writer, form, row):
    """State and weights are equal to the bit; further training agrees within float32."""
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

    if row == "nadam" and hosts.IS_KERAS3 != (writer in KERAS3):
        return  # the momentum schedule of Keras 3's Nadam isn't Keras 2's
    model.run_eagerly = True  # a few steps take less time than their compilation; not in Keras 2
    go_on(model, STOP, arrays=(truth["x"], truth["y"]))
    assert model.optimizer.completed_updates == training.SAMPLES // training.BIG
    # In plain RMSprop, epsilon is inside the root on Keras 3 and outside it on Keras 2.
    atol = 2e-4 if row == "rmsprop" and hosts.IS_KERAS3 else 1e-6
    if row == "nadam" and writer in KERAS2:
        atol = 2e-5  # files of Keras 2.2 and 2.3 hold beta_2 rounded to float32
    for actual, start, expected in zip(model.get_weights(), saved, end):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=atol)
        assert np.abs(actual - start).max() > 0.01, "hardly moved: nothing is tested"
    assert int(state["accum_iters"]) == LENGTH


# -- TensorFlow's own formats --------------------------------------------------------------------


def load_tensorflow(folder, row, form):
    path = str(folder / f"{row}.{form}")
    model = fresh_adam(row)
    if form == "saved_model":
        model = keras.models.load_model(path)
        hosts.build(model)
        model.load_weights(f"{path}/variables/variables").expect_partial()
    elif form == "tf_weights":
        hosts.build(model)
        model.load_weights(path).expect_partial()
    elif form == "checkpoint":
        hosts.build(model)
        whole = hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        whole.read(path).expect_partial()
    else:
        whole = hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        status = whole.read(str(folder / f"{row}.checkpoint"))
        hosts.build(model)
        status.expect_partial()
    return model


def trained_by_stock(row, values, start):
    """Return the weights after each update of the stock optimizer with the windows' averages."""
    variables = [hosts.variable(w, f"w{i}", "float32") for i, w in enumerate(start)]
    optimizer = adam(row, is_stock=True)
    hosts.build_on(optimizer, variables)
    given, found = micro_batches(row, values, variables), []
    for first in range(0, len(given), LENGTH):
        window = given[first : first + LENGTH]
        averages = {
            i: sum(w * g[i] for w, g in window if i in g) / sum(w for w, _ in window)
            for i in range(len(variables))
            if any(i in g for _, g in window)
        }
        step(optimizer, averages, variables)
        found.append([hosts.array(v).copy() for v in variables])
    return found


@thorough
@each_version
@pytest.mark.skipif(not CHECKPOINTS, reason="only TensorFlow has checkpoints")
@pytest.mark.parametrize(("release", "writer", "form", "row"), CHECKPOINTS)
def test_a_kept_checkpoint_is_read(release, writer, form, row):
    """The training goes on like one of the stock optimizer. Some counters come and go."""
    folder = FILES / release / writer
    with np.load(folder / f"{row}.truth.npz") as file:
        truth = dict(file)
    values = truth.pop("gradients")
    saved, *_, end = trained_by_stock(row, values, list(truth.values()))
    model = load_tensorflow(folder, row, form)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 2)
    for actual, expected in zip(model.get_weights(), saved):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    accumulate(model, row, values, STOP)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (3, 0)
    for actual, start, expected in zip(model.get_weights(), saved, end):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
        assert np.abs(actual - start).max() > 0.01, "hardly moved: nothing is tested"
