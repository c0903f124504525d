"""A model saved inside a window continues in a new process, to the bit, in every file format."""

import os
import subprocess
import sys
from pathlib import Path

import hosts
import numpy as np
import pytest
import training
from cases import each_version, keras2_has_no, quick_once_on_keras3, thorough
from formats import ALL, CLASSES, FORMATS, ROWS, SAVED, STOP, assert_same, everything, fresh
from hosts import keras
from training import LENGTH, MICRO, assert_moved, go_on, weights
from zoo import Interrupt


@thorough
@each_version
@pytest.mark.filterwarnings("ignore:(?s).*`fit` found a micro-batch's weight")  # JAX, eager steps
def test_continues_in_a_new_process(tmp_path):
    """All files are in one test, since each new process imports a framework first."""
    # Layers are numbered from 1, as in the new process: the numbers of a state that are one off
    # would name other layers there.
    keras.backend.clear_session()
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
    command = [sys.executable, hosts.SUPPORT / "formats.py", tmp_path]
    process = subprocess.run(command, env=os.environ, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 0, process.stderr


# Where each backend leaves a file, and the end of its training, for the sessions of the others.
SHARED = Path(os.environ.get("KERAS_ACCUM_TEST_FILES", "no such folder"))


@thorough
@pytest.mark.usefixtures("float32")
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="only Keras 3 has backends")
@pytest.mark.parametrize("writer", ["tensorflow", "jax", "torch"])
def test_a_file_of_another_backend(writer, tmp_path):
    """Saved inside a window, it continues there."""
    folder = SHARED / "backends" if SHARED.is_dir() else tmp_path
    file, end = folder / f"{writer}.keras", folder / f"{writer}.npz"
    if writer == hosts.BACKEND:
        folder.mkdir(exist_ok=True)
        model = go_on(fresh(), 0, STOP)
        model.save(file)
        np.savez(end, *go_on(model, STOP).get_weights())
    elif not end.exists():
        pytest.skip(f"no file of this backend: `nox -s keras3_{writer} -- -m thorough` writes it")
    model = keras.models.load_model(file, custom_objects=CLASSES)
    assert model.optimizer.window_position == STOP % LENGTH > 0
    model.run_eagerly, model.jit_compile = True, False  # a file of JAX has True, for torch.compile
    with np.load(end) as expected:
        for actual, value in zip(go_on(model, STOP).get_weights(), expected.values()):
            np.testing.assert_allclose(actual, value, rtol=1e-5, atol=1e-6)


# How Keras 3 builds an optimizer without variables; with TensorFlow, not for frozen layers.
BUILT_EMPTY = ["a LossScaleOptimizer in HDF5", "frozen layers"][: 1 if hosts.IS_TENSORFLOW else 2]


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="other Kerases don't build without variables")
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.filterwarnings("ignore:(?s).*`fit` found a micro-batch's weight")  # JAX, eager steps
@pytest.mark.parametrize("how", BUILT_EMPTY)
def test_built_without_variables(how, tmp_path):
    """Keras gives no state of such a file, and training must not begin afresh then."""
    if how == "frozen layers":
        model = fresh()
        model.trainable = False
        training.fit(model, MICRO, epochs=1)
        model.trainable = True
    else:
        go_on(fresh("scaled"), 0, STOP).save(tmp_path / "m.h5")
        model = keras.models.load_model(tmp_path / "m.h5", custom_objects=CLASSES)
    said = f"no trainable variables: .*{how}.*a new optimizer"
    if hosts.BACKEND == "jax":  # where a LossScaleOptimizer of Keras raises its own error first
        said += "|AdamAccumulate must be built"
    with pytest.raises(ValueError, match=said):
        go_on(model, STOP)


CHANGES = {
    "lora": lambda layer: layer.enable_lora(2),
    "quantize": lambda layer: layer.quantize("int8"),
    "freeze": lambda layer: setattr(layer, "trainable", False),
}


@quick_once_on_keras3
@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about layers of Keras 3")
@pytest.mark.parametrize("change", CHANGES)
def test_other_trainable_variables_in_a_file(change, tmp_path):
    """As with a stock optimizer, a warning says that the optimizer starts afresh."""
    hosts.set_floatx("float32")
    model = go_on(fresh(), 0, STOP)
    CHANGES[change](model.layers[0])
    model.save(tmp_path / "m.keras")
    with pytest.warns(UserWarning, match="Skipping variable loading .* 4 trainable .*afresh"):
        again = keras.models.load_model(tmp_path / "m.keras", custom_objects=CLASSES)
    assert (again.optimizer.completed_updates, again.optimizer.window_position) == (0, 0)
    training.fit(again, MICRO, epochs=1)
    assert again.optimizer.completed_updates == training.WINDOWS


@pytest.mark.skipif(not hosts.IS_TF_KERAS, reason="about the policy of tf_keras")
def test_the_loss_scale_optimizer_of_a_policy(tmp_path):
    """The file has it, so no policy is needed to load."""
    policy = keras.mixed_precision.set_global_policy
    hosts.set_floatx("float32")
    policy("mixed_float16")
    model = go_on(fresh(), 0, STOP)
    FORMATS["keras"].save(model, tmp_path)
    end = everything(go_on(model, STOP))
    policy("float32")
    assert_same(everything(go_on(FORMATS["keras"].load(tmp_path, fresh), STOP)), end)


class Restored(keras.callbacks.Callback):
    """Record what was restored. Then Keras 3 repeats the epoch, and tf_keras its later batches."""

    def on_train_begin(self, logs=None):
        hosts.build(self.model)  # TensorFlow restores a value when its variable is created
        self.found = everything(self.model)


@keras2_has_no("BackupAndRestore")
@pytest.mark.parametrize("accum_iters", [LENGTH, 3])
def test_backup_and_restore(accum_iters, tmp_path):
    """The next run may have another length, for the windows after the open one."""
    backup = {"backup_dir": str(tmp_path / "backup"), "save_freq": STOP}
    restored = Restored()
    for last, length in ((Interrupt(STOP + 1, InterruptedError), LENGTH), (restored, accum_iters)):
        model = fresh(accum_iters=length, reduction="mean")
        callbacks = [keras.callbacks.BackupAndRestore(**backup), last]
        try:
            training.fit(model, MICRO, epochs=1, callbacks=callbacks)
        except InterruptedError:
            assert last is not restored
    assert_same(restored.found, everything(go_on(fresh(reduction="mean"), 0, STOP)))
    assert model.optimizer.accum_iters == accum_iters


@pytest.mark.skipif(not hosts.IS_KERAS3, reason="about Keras 3's `.keras` files")
@quick_once_on_keras3
def test_a_keras_file_after_one_in_hdf5(tmp_path):
    """Keras leaves the optimizer out of it, unless the model is compiled again (limits.md)."""
    model = fresh()
    go_on(model, 0, STOP)
    model.save(tmp_path / "m.h5")
    model.compile(model.optimizer, loss=keras.losses.MeanSquaredError())
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert_same(everything(loaded), everything(model))
    assert loaded.optimizer.window_position == STOP % LENGTH > 0
