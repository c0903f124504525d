"""All formats in which a host saves a model. `python formats.py ROOT` loads in a new process."""

import json
import sys
import traceback
from collections import namedtuple
from pathlib import Path

import hosts
import numpy as np
from cases import CASES, KINDS, NAMES
from hosts import keras
from training import LENGTH, compiled, dense_model, go_on, inner, weights

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
            if model and extension == "h5" and hosts.IS_KERAS3:
                hosts.build(model)  # Keras 3's HDF5 files refuse a state that waits
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
        if hosts.IS_NEW_STYLE:  # Keras leaves these optimizers fresh, the stock ones as well
            hosts.build(model)
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
    "decay": hosts.our_decay(0.5),
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
if hosts.IS_KERAS3 and not hosts.IS_TENSORFLOW:  # the files are the same on all backends
    OPTIONS = {name: OPTIONS[name] for name in ("mixed", "ema")}
    OTHERS = {name: OTHERS[name] for name in ("registered", "weights")}
RUNS.update({name: (CASES["adam"], more) for name, more in OPTIONS.items()})
SAVED = [(run, form) for run in RUNS for form in MAIN] + [(r, f) for r in KINDS for f in OTHERS]
if ("scaled", "h5") in SAVED and hosts.IS_KERAS3:
    SAVED.remove(("scaled", "h5"))  # see test_loss_scale_optimizer_in_hdf5


def in_new_process(root):
    """Continue from all files, in the new process: `python formats.py ROOT`."""
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


if __name__ == "__main__":
    in_new_process(Path(sys.argv[1]))
