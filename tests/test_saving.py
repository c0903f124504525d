"""A model saved inside a window continues in a new process, to the bit, in every file format."""

import json
import os
import subprocess
import sys
import traceback
from collections import namedtuple

import hosts
import numpy as np
import pytest
import training
from cases import CASES, KINDS, NAMES, each_version, few_cases, keras2_has_no, quick_first, thorough
from hosts import keras
from training import (
    LENGTH,
    MICRO,
    assert_moved,
    compiled,
    dense_model,
    go_on,
    inner,
    weights,
)

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")

STOP = LENGTH + 2  # two micro-batches into the second window
CLASSES = {f"{name}Accumulate": getattr(hosts.accum, f"{name}Accumulate") for name in NAMES}


def model_for(case, scaled=False, dtype=None, **more):
    optimizer = hosts.ours(case.name, **{"accum_iters": LENGTH, **case.arguments, **more})
    if scaled:
        optimizer = hosts.loss_scaled(optimizer, initial_scale=8.0)
    # Keras 3 can't read a loss by its name from an HDF5 file.
    model = dense_model(dtype=dtype) if dtype else dense_model()
    return compiled(model, optimizer, hosts.mean_squared_error())


def everything(model):
    """Weights by number, since a loaded model's paths differ, and the optimizer's whole state."""
    return {**dict(enumerate(weights(model).values())), **inner(model.optimizer).get_state()}


def assert_same(actual, expected):
    assert list(map(str, actual)) == list(map(str, expected))
    for name, value in zip(expected, actual.values()):
        np.testing.assert_array_equal(value, expected[name], err_msg=str(name))


# -- formats -----------------------------------------------------------------------------------

# save(model, folder); load(folder, fresh), where fresh() returns an untrained model of that kind.
Format = namedtuple("Format", "save load")


def file(*extensions, custom_objects=CLASSES):
    """Whole models in files. With several, each is loaded and saved as the next one."""

    def save(model, folder):
        model.save(str(folder / f"0.{extensions[0]}"))

    def load(folder, fresh):
        model = None
        for i, extension in enumerate(extensions):
            path = str(folder / f"{i}.{extension}")
            if model:
                model.save(path)
            model = keras.models.load_model(path, custom_objects=custom_objects)
        return model

    return Format(save, load)


def weights_file(name):
    def load(folder, fresh):
        model = fresh()
        if hosts.IS_KERAS3:
            hosts.build(model)
        model.load_weights(folder / name)
        return model

    return Format(lambda model, folder: model.save_weights(folder / name), load)


def weights_then_hdf5():
    """A TensorFlow checkpoint restores slots in its own order. HDF5 holds them by position."""
    save, load_weights = weights_file("weights")

    def load(folder, fresh):
        model = load_weights(folder, fresh)
        hosts.build(model)
        model.save(folder / "m.h5")
        return keras.models.load_model(folder / "m.h5", custom_objects=CLASSES)

    return Format(save, load)


def saved_model():
    def load(folder, fresh):
        model = keras.models.load_model(folder / "folder", custom_objects=CLASSES)
        model.load_weights(folder / "folder" / "variables" / "variables").expect_partial()
        return model

    return Format(lambda model, folder: model.save(folder / "folder", save_format="tf"), load)


def checkpoint():
    def manager(model, folder):
        whole = hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        return hosts.tf.train.CheckpointManager(whole, folder, max_to_keep=2)

    def load(folder, fresh):
        model = fresh()
        manager(model, folder).restore_or_initialize()
        return model

    return Format(lambda model, folder: manager(model, folder).save(), load)


if hosts.IS_KERAS3:
    MAIN = {"keras": file("keras"), "h5": file("h5")}
    OTHERS = {
        "registered": file("keras", custom_objects=None),
        "registered_h5": file("h5", custom_objects=None),
        "keras_again": file("keras", "keras"),
        "h5_again": file("h5", "h5", "keras", "h5"),
        "weights": weights_file("m.weights.h5"),
    }
elif hosts.IS_KERAS2:
    MAIN = {"h5": file("h5")}
    OTHERS = {"registered": file("h5", custom_objects=None), "h5_again": file("h5", "h5")}
else:
    MAIN = {"h5": file("h5"), "keras": file("keras")}
    OTHERS = {
        "registered": file("h5", custom_objects=None),
        "registered_keras": file("keras", custom_objects=None),
        "keras_again": file("keras", "h5", "keras", "keras"),
        "weights": weights_file("weights"),
        "weights_again": weights_then_hdf5(),
        "saved_model": saved_model(),
        "checkpoint": checkpoint(),
    }
FORMATS = {**MAIN, **OTHERS}

# Arguments that change the state, in addition to those of Adam.
OPTIONS = {
    "accum_iters_1": {"accum_iters": 1},
    "decay": {"decay": 0.5},
    "clipnorm": {"clipnorm": 0.05},
    "sum": {"reduction": "sum", "skip_nonfinite": True},
}
if not hosts.IS_KERAS2:
    schedule = keras.optimizers.schedules.ExponentialDecay(2**-5, 2, 0.5)
    OPTIONS["schedule"] = {"learning_rate": schedule}
    OPTIONS["scaled"] = {"scaled": True}
    OPTIONS["half"] = {"dtype": "float16", "epsilon": 2**-10}
    OPTIONS["mixed"] = {"dtype": "mixed_float16"}
if hosts.IS_KERAS3:
    OPTIONS["ema"] = {"use_ema": True, "ema_overwrite_frequency": 2}

RUNS = {name: (case, {}) for name, case in KINDS.items()}
RUNS.update({name: (CASES["adam"], more) for name, more in OPTIONS.items()})
SAVED = [(run, form) for run in RUNS for form in MAIN] + [(r, f) for r in KINDS for f in OTHERS]
if hosts.IS_KERAS3:
    SAVED.remove(("scaled", "h5"))  # see test_loss_scale_optimizer_in_hdf5


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """For each of SAVED the result of an uninterrupted run.

    A new process has written its own results, or its errors, beside the files.
    """
    root = tmp_path_factory.mktemp("saved")
    hosts.set_floatx(hosts.FLOATX)
    expected = {}
    for run, (case, more) in RUNS.items():
        hosts.set_random_seed()  # on TensorFlow 1 this empties the graph too
        model = model_for(case, **more)
        start = weights(model)
        go_on(model, 0, STOP)
        forms = [form for r, form in SAVED if r == run]
        # Once saved as HDF5, Keras 3 leaves the optimizer out of a model's `.keras` file.
        for form in sorted(forms, key=lambda form: "h5" in form):
            folder = root / run / form
            folder.mkdir(parents=True)
            FORMATS[form].save(model, folder)
        expected[run] = everything(go_on(model, STOP))
        assert_moved(start, weights(model), by=0.005)
    subprocess.run([sys.executable, __file__, root], env=os.environ, check=True)
    return root, expected


def in_new_process(root):
    """Continue from all files, in the new process: `python test_saving.py ROOT`."""
    hosts.set_floatx(hosts.FLOATX)
    for run, form in SAVED:
        folder = root / run / form
        case, more = RUNS[run]
        hosts.set_random_seed()
        try:
            model = FORMATS[form].load(folder, lambda c=case, m=more: model_for(c, **m))
            # TensorFlow restores some variables when the first step creates them.
            go_on(model, STOP, STOP + 1)
            loaded = {"position": inner(model.optimizer).window_position}
            end = everything(go_on(model, STOP + 1))
            np.savez(folder / "end.npz", **{str(name): array for name, array in end.items()})
        except Exception:
            loaded = {"error": traceback.format_exc()}
        (folder / "loaded.json").write_text(json.dumps(loaded))


@thorough
@each_version
@pytest.mark.parametrize(("run", "form"), SAVED, ids=map("-".join, SAVED))
def test_continues_in_a_new_process(run, form, continued):
    root, expected = continued
    loaded = json.loads((root / run / form / "loaded.json").read_text())
    assert "error" not in loaded, loaded["error"]
    assert loaded["position"] == (0 if run == "accum_iters_1" else 3)
    with np.load(root / run / form / "end.npz") as end:
        assert_same(dict(end), expected[run])


@quick_first("form", list(MAIN))
def test_after_a_partial_window(form, tmp_path):
    """The file has the counters of a closed window, and an update more."""
    model = model_for(CASES["adam"])
    for x, y in training.batches(MICRO)[:STOP]:
        model.train_on_batch(x, y)
    model.optimizer.apply_partial_window()
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (2, 0)
    expected = everything(model)
    MAIN[form].save(model, tmp_path)
    loaded = MAIN[form].load(tmp_path, lambda: model_for(CASES["adam"]))
    assert_same(everything(loaded), expected)
    for x, y in training.batches(MICRO)[STOP : STOP + LENGTH + 1]:
        for some in (model, loaded):
            some.train_on_batch(x, y)
    assert (loaded.optimizer.completed_updates, loaded.optimizer.window_position) == (3, 1)
    assert_same(everything(loaded), everything(model))


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


@keras2_has_no("ModelCheckpoint in the middle of an epoch")
@few_cases
def test_model_checkpoint(case, tmp_path):
    path = tmp_path / ("m.keras" if hosts.IS_KERAS3 else "m.h5")
    save = keras.callbacks.ModelCheckpoint(str(path), save_freq=STOP)
    with pytest.raises(Interrupted):
        fit(model_for(case), save, Interrupt())
    model = keras.models.load_model(path, custom_objects=CLASSES)
    assert model.optimizer.window_position == 2
    assert_same(everything(go_on(model, STOP)), everything(go_on(model_for(case), 0)))


@keras2_has_no("BackupAndRestore")
@few_cases
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


if __name__ == "__main__":
    from pathlib import Path

    in_new_process(Path(sys.argv[1]))
