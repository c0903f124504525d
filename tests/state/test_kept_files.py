"""This version reads the files of all releases, from every host and backend."""

import json
import shutil

import h5py
import hosts
import numpy as np
import pytest
import write_files
from cases import CASES, each_version, thorough
from formats import CLASSES, assert_same
from hosts import keras
from write_files import BY_GRADIENTS, KEPT, STOP, WRITER, fresh

pytestmark = pytest.mark.usefixtures("float32")
FILES, accum = hosts.TESTS / "files", hosts.accum
NAMES = dict(CLASSES)
if hosts.IS_KERAS3:  # which doesn't know the short name in HDF5
    NAMES["mse"] = keras.losses.mean_squared_error
# What this host writes, and what it reads of tf_keras and tf.keras.
OWN = (WRITER, "tf_keras_2_15") if WRITER == "tf_keras" else (WRITER,)


HERE = "state_format", "weight_names", "window_weight"  # of the optimizer that was loaded into


def is_read(writer, row, form):
    """True if this host reads such a file. On Keras 3, PyTorch reads all but TensorFlow's own."""
    if form not in ("keras", "h5", "weights.h5", "state.npz"):
        return hosts.IS_TENSORFLOW and writer in OWN
    if row not in CASES or hosts.IS_KERAS3 and not hosts.IS_TORCH:
        return False
    if form == "state.npz":
        return True
    if form == "h5" and hosts.IS_KERAS3:
        return True
    if form == "h5" and writer.startswith("keras2"):
        return not hosts.IS_NEW_STYLE
    return writer.startswith("keras3") if hosts.IS_KERAS3 else writer in OWN


def parts_of(path):
    """Return release, writer, row and form of a file."""
    row, _, form = path.name.partition(".")
    return (*path.parts[-3:-1], row, form.partition(".data-")[0])


PATHS = sorted(FILES.glob("[0-9]*/*/*"))
# A checkpoint has two files.
READ = [parts_of(path) for path in PATHS if not path.name.endswith((".truth.npz", ".index"))]
READ = [parts for parts in READ if is_read(*parts[1:])]
READ += [(*parts[:3], "checkpoint_before_build") for parts in READ if parts[3] == "checkpoint"]


def load(path, row, form, saved):
    if form in ("keras", "h5"):
        return keras.models.load_model(str(path), custom_objects=NAMES)
    if form == "saved_model":
        model = keras.models.load_model(path)
        hosts.build(model)
        model.load_weights(path / "variables" / "variables").expect_partial()
        return model
    model = fresh(row)
    if form == "state.npz":  # the state doesn't include the weights
        model.set_weights(saved)
        model.optimizer.set_state(dict(np.load(path)))
        return model
    if form != "checkpoint_before_build":
        hosts.build(model)
    if form == "weights.h5":
        status = model.load_weights(path)
    else:
        whole = hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        status = whole.read(str(path.with_suffix(".checkpoint")))
    if hosts.IS_TENSORFLOW:
        status.expect_partial()
    return model


def test_the_files_of_a_release():
    """A dozen models of each release are kept, from every writer.

    In 0.3.0, slots of legacy optimizers in TensorFlow's formats had a name that isn't read.
    """
    kept = {(w, row, form) for w in KEPT for row in KEPT[w] for form in KEPT[w][row]}
    assert len(kept) == 12
    slots = {each for each in kept if each[0][:3] == "tf_" and each[2] not in ("h5", "keras")}
    for release in {path.parts[-3] for path in PATHS}:
        expected = kept - slots if release == "0.3.0" else kept
        found = {parts_of(path)[1:] for path in PATHS if path.parts[-3] == release}
        assert {parts for parts in found if not parts[2].endswith(("npz", "index"))} == expected
        assert {(w, row, "truth.npz") for w, row, _ in expected} <= found


def with_a_loss_that_keras_3_reads(path, folder):
    """And with the class name that `accumulating` gives, for the newer style of tf_keras."""
    path = shutil.copy(path, folder)
    with h5py.File(path, "r+") as file:
        training = json.loads(file.attrs["training_config"])
        training["loss"], optimizer = "mse", training["optimizer_config"]
        if "is_legacy_optimizer" in optimizer["config"]:
            optimizer["class_name"] = "keras_accum.new_style>AdamWAccumulate"
        file.attrs["training_config"] = json.dumps(training).encode()
    return path


# Keras 3 warns about the one-element list of inputs in Keras 2.2's and 2.3's files.
@thorough
@each_version
@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match")
@pytest.mark.parametrize(("release", "writer", "row", "form"), READ)
def test_a_kept_file_is_read(release, writer, row, form, tmp_path):
    """State and weights are equal to the bit; further training agrees within float32."""
    folder, path = FILES / release / writer, FILES / release / writer / f"{row}.{form}"
    with np.load(folder / f"{row}.truth.npz") as file:
        truth = dict(file)
    saved, end = ([truth[f"{when}_{i}"] for i in range(4)] for when in ("saved", "end"))
    if hosts.IS_KERAS3 and writer.startswith("tf_keras") and form == "h5":
        path = with_a_loss_that_keras_3_reads(path, tmp_path)
    if hosts.IS_KERAS2 and release == "3.0.0" and not writer.startswith("keras2"):
        # Since 2.2, `train_on_batch` weighs, and Keras 2 has no weights.
        with pytest.raises(accum.StateError, match="open window has weights.*apply_partial"):
            hosts.build(load(path, row, form, saved))
        return
    model = load(path, row, form, saved)
    hosts.build(model)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (1, 2)
    # Trainings by gradients are those of the stock optimizer.
    near = {"rtol": 1e-5, "atol": 1e-6} if row in BY_GRADIENTS else {"rtol": 0}
    for actual, expected in zip(model.get_weights(), saved):
        np.testing.assert_allclose(actual, expected, **near)
    if row not in BY_GRADIENTS:
        with np.load(folder / f"{row}.state.npz") as expected:
            state = model.optimizer.get_state()
            # Each release names the format that it writes, and other hosts have other names.
            found = [{n: v for n, v in s.items() if n not in HERE} for s in (state, expected)]
            assert_same(*found)

    if row == "nadam" and hosts.IS_KERAS3 != writer.startswith("keras3"):
        return  # the momentum schedule of Keras 3's Nadam isn't Keras 2's
    model.run_eagerly = True  # a few steps take less time than their compilation; not in Keras 2
    write_files.train_on_truth(model, truth, STOP)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (3, 0)
    # In plain RMSprop, epsilon is outside the root on Keras 2 and in the legacy style alone.
    is_inside = hosts.IS_KERAS3 or hosts.IS_NEW_STYLE
    atol = 2e-4 if row == "rmsprop" and is_inside else 1e-6
    for actual, start, expected in zip(model.get_weights(), saved, end):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=atol)
        assert np.abs(actual - start).max() > 0.01, "hardly moved: nothing is tested"
