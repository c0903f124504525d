"""A model saved inside a window continues in a new process, to the bit, in every file format."""

import json
import os
import subprocess
import sys

import hosts
import numpy as np
import pytest
import training
from cases import CASES, each_version, keras2_has_no, on_adam, thorough
from formats import (
    CLASSES,
    FORMATS,
    MAIN,
    RUNS,
    SAVED,
    STOP,
    assert_same,
    everything,
    model_for,
)
from hosts import keras
from training import (
    MICRO,
    assert_moved,
    go_on,
    weights,
)

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")


# -- formats -----------------------------------------------------------------------------------


@thorough
@each_version
def test_continues_in_a_new_process(tmp_path):
    """All formats are in one test, since each new process imports a framework first."""
    expected = {}
    for run, (case, more) in RUNS.items():
        hosts.set_random_seed()  # on TensorFlow 1 this empties the graph too
        model = model_for(case, **more)
        start = weights(model)
        go_on(model, 0, STOP)
        forms = [form for r, form in SAVED if r == run]
        # Once saved as HDF5, Keras 3 leaves the optimizer out of a model's `.keras` file.
        for form in sorted(forms, key=lambda form: "h5" in form):
            folder = tmp_path / run / form
            folder.mkdir(parents=True)
            FORMATS[form].save(model, folder)
        expected[run] = everything(go_on(model, STOP))
        assert_moved(start, weights(model), by=0.005)
    script = hosts.TESTS / "formats.py"
    subprocess.run([sys.executable, script, tmp_path], env=os.environ, check=True)
    wrong = {}
    for run, form in SAVED:
        try:
            assert_continued(tmp_path / run / form, run, expected[run])
        except AssertionError as error:
            wrong[run, form] = error
    assert not wrong, "\n\n".join(f"{run}-{form}: {error}" for (run, form), error in wrong.items())


def assert_continued(folder, run, expected):
    """The new process has written its results, or its error, beside the file."""
    loaded = json.loads((folder / "loaded.json").read_text())
    assert "error" not in loaded, loaded["error"]
    assert loaded["position"] == (0 if run == "accum_iters_1" else 3)
    with np.load(folder / "end.npz") as end:
        assert_same(dict(end), expected)


@pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="about LossScaleOptimizer in HDF5, which only Keras 3 can't read"
)
def test_loss_scale_optimizer_in_hdf5(tmp_path):
    """Keras 3 can't read its LossScaleOptimizer from HDF5. Training must not begin afresh then."""
    model = go_on(model_for(CASES["adam"], scaled=True), 0, STOP)
    model.save(tmp_path / "m.h5")
    model = keras.models.load_model(tmp_path / "m.h5", custom_objects=CLASSES)
    with pytest.raises(ValueError, match="variable"):
        go_on(model, STOP)


@pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="only Keras 3 keeps a list until its variables come"
)
def test_hdf5_of_a_state_that_waits(tmp_path):
    """A list that waits for variables has no place in an HDF5 file, and isn't lost by trying."""
    model = go_on(model_for(CASES["adam"]), 0, STOP)
    expected = everything(model)
    MAIN["h5"].save(model, tmp_path)
    loaded = MAIN["h5"].load(tmp_path, None)
    with pytest.raises(ValueError, match=r"optimizer\.build\(model\.trainable_variables\)"):
        loaded.save(tmp_path / "again.h5")
    hosts.build(loaded)
    assert_same(everything(loaded), expected)


# -- Keras's callbacks -------------------------------------------------------------------------


class Interrupted(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    """End the training like a crash, in the middle of an epoch and of a window."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == STOP:
            raise Interrupted


class Restored(keras.callbacks.Callback):
    """Record what a callback before this one has restored."""

    def on_train_begin(self, logs=None):
        # TensorFlow restores a value when its variable is created.
        hosts.build(self.model)
        self.found = everything(self.model)


def fit(model, *callbacks):
    training.fit(model, MICRO, epochs=1, callbacks=list(callbacks))
    return model


@keras2_has_no("BackupAndRestore")
@on_adam
def test_backup_and_restore(case, tmp_path):
    """Only the restored state is compared.

    After it, Keras 3 repeats the epoch, and Keras 2 continues in the middle of the epoch with the
    batches of its beginning.
    """
    backup = {"backup_dir": str(tmp_path / "backup"), "save_freq": STOP}
    with pytest.raises(Interrupted):
        fit(model_for(case), keras.callbacks.BackupAndRestore(**backup), Interrupt())
    restored = Restored()
    fit(model_for(case), keras.callbacks.BackupAndRestore(**backup), restored)
    assert_same(restored.found, everything(go_on(model_for(case), 0, STOP)))
