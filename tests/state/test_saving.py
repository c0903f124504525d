"""A model saved inside a window continues in a new process, to the bit, in every file format."""

import json
import os
import subprocess
import sys
import zipfile

import hosts
import numpy as np
import pytest
import training
from cases import each_version, keras2_has_no, thorough
from formats import ALL, CLASSES, FORMATS, ROWS, SAVED, STOP, assert_same, everything, fresh
from hosts import keras
from training import MICRO, assert_moved, go_on, weights

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")


@thorough
@each_version
def test_continues_in_a_new_process(tmp_path):
    """All files are in one test, since each new process imports a framework first."""
    for row in ROWS:
        hosts.set_random_seed()  # on TensorFlow 1 this empties the graph too
        model = fresh(row)
        start = weights(model)
        go_on(model, 0, STOP)
        # Once saved as HDF5, Keras 3 leaves the optimizer out of a model's `.keras` file.
        for form in sorted((f for r, f in SAVED if r == row), key=lambda form: form == "h5"):
            folder = tmp_path / row / form
            folder.mkdir(parents=True)
            ALL[form].save(model, folder)
        end = everything(go_on(model, STOP))
        np.savez(tmp_path / row / "end.npz", **{str(name): value for name, value in end.items()})
        assert_moved(start, weights(model), by=0.005)
    command = [sys.executable, hosts.TESTS / "formats.py", tmp_path]
    process = subprocess.run(command, env=os.environ, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.skipif(
    not hosts.IS_KERAS3, reason="about LossScaleOptimizer in HDF5, which only Keras 3 can't read"
)
def test_loss_scale_optimizer_in_hdf5(tmp_path):
    """Training must not begin afresh then."""
    go_on(fresh("scaled"), 0, STOP).save(tmp_path / "m.h5")
    model = keras.models.load_model(tmp_path / "m.h5", custom_objects=CLASSES)
    with pytest.raises(ValueError, match="variable"):
        go_on(model, STOP)


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about the policy of tf_keras")
def test_the_loss_scale_optimizer_of_a_policy(tmp_path):
    """The file has it, so no policy is needed to load. Release 0.1.0 wrote files without it."""
    policy, path = keras.mixed_precision.set_global_policy, tmp_path / "m.keras"
    hosts.set_floatx("float32")
    policy("mixed_float16")
    model = go_on(fresh(), 0, STOP)
    model.save(path)
    before, end = everything(model), everything(go_on(model, STOP))
    policy("float32")
    assert_same(everything(go_on(FORMATS["keras"].load(tmp_path, fresh), STOP)), end)

    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    config = json.loads(parts["config.json"])
    scaled = config["compile_config"]["optimizer"]
    config["compile_config"]["optimizer"] = scaled["config"]["inner_optimizer"]
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {**parts, "config.json": json.dumps(config)}.items():
            file.writestr(name, content)
    if hosts.IS_LEGACY:  # a LossScaleOptimizer of the newer style writes the state, too
        with pytest.warns(UserWarning, match="holds no state of Adam.*LossScaleOptimizer"):
            FORMATS["keras"].load(tmp_path, fresh)
    policy("mixed_float16")
    assert_same(everything(FORMATS["keras"].load(tmp_path, fresh)), before)


class Interrupt(keras.callbacks.Callback):
    """End the training like a crash, in the middle of an epoch and of a window."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == STOP:
            raise InterruptedError


class Restored(keras.callbacks.Callback):
    """Record what a callback before this one has restored.

    After it, Keras 3 repeats the epoch, and tf_keras continues with the batches of its beginning.
    """

    def on_train_begin(self, logs=None):
        hosts.build(self.model)  # TensorFlow restores a value when its variable is created
        self.found = everything(self.model)


@keras2_has_no("BackupAndRestore")
def test_backup_and_restore(tmp_path):
    backup = {"backup_dir": str(tmp_path / "backup"), "save_freq": STOP}
    restored = Restored()
    for last in (Interrupt(), restored):
        callbacks = [keras.callbacks.BackupAndRestore(**backup), last]
        try:
            training.fit(fresh(), MICRO, epochs=1, callbacks=callbacks)
        except InterruptedError:
            assert last is not restored
    assert_same(restored.found, everything(go_on(fresh(), 0, STOP)))
