"""Models to save, and a host's formats. `python formats.py ROOT` continues from all files."""

import functools
import pickle
import sys
import traceback
from collections import namedtuple
from pathlib import Path

import hosts
import numpy as np
from cases import ADAM, KINDS, NAMES
from hosts import keras
from training import LENGTH, compiled, go_on, inner, weights

STOP = LENGTH + 2  # two micro-batches into the second window
CLASSES = {f"{name}Accumulate": getattr(hosts.accum, f"{name}Accumulate") for name in NAMES}

# What is saved: a case, and arguments in addition, also the dtype of the layers and a loss scale.
ROWS = {name: (case, {}) for name, case in KINDS.items()}
ROWS["accum_iters_1"] = (ADAM, {"accum_iters": 1})
ROWS["decay"] = (ADAM, {**hosts.our_decay(0.5), "clipnorm": 0.05})
if not hosts.IS_KERAS2:
    schedule = keras.optimizers.schedules.ExponentialDecay(2**-5, 2, 0.5)
    ROWS["schedule"] = (ADAM, {"learning_rate": schedule})
    ROWS["half"] = (ADAM, {"dtype": "float16", "epsilon": 2**-10})
    # Keras rounds 0.999 to 1 in bfloat16, and then no weight moves.
    ROWS["bfloat16"] = (ADAM, {"dtype": "bfloat16", "epsilon": 2**-10, "beta_2": 0.75})
    ROWS["mixed"] = (ADAM, {"dtype": "mixed_float16"})
    ROWS["scaled"] = (ADAM, {"dtype": "mixed_float16", "loss_scale": 8.0})
if hosts.IS_KERAS3:
    ROWS["ema"] = (ADAM, {"use_ema": True, "ema_overwrite_frequency": 2})
if hosts.BACKEND == "jax":  # files are the same on all backends, and eager steps are slow here
    ROWS = {name: ROWS[name] for name in ("adam", "bfloat16", "scaled", "ema")}


def eager(model):
    """To compile a step would take longer than the training."""
    if not hosts.IS_KERAS2:
        model.run_eagerly = True
    return model


def model_with(optimizer, **layers):
    """The process numbers its layers: a model built again has `dense_2` where it had `dense`."""
    hidden = keras.layers.Dense(4, activation="tanh", **layers)
    model = hosts.sequential((3,), [hidden, keras.layers.Dense(2, **layers)])
    # Keras 3 can't read a loss by its name from an HDF5 file.
    return eager(compiled(model, optimizer, hosts.mean_squared_error()))


def fresh(row="adam", **changed):
    """An untrained model of a row."""
    case, more = ROWS[row]
    arguments = {"accum_iters": LENGTH, **case.arguments, **more, **changed}
    layers = {"dtype": arguments.pop("dtype")} if "dtype" in arguments else {}
    scale = arguments.pop("loss_scale", None)
    optimizer = hosts.ours(case.name, **arguments)
    return model_with(hosts.loss_scaled(optimizer, scale) if scale else optimizer, **layers)


def portable(array):
    """NumPy's files have no bfloat16."""
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def everything(model):
    """Weights by number, since a loaded model's paths differ, and the optimizer's whole state."""
    found = dict(enumerate(map(portable, weights(model).values())))
    state = inner(model.optimizer).get_state()
    state.pop("weight_names", None)
    return {**found, **state}


def assert_same(actual, expected):
    actual, expected = ({str(n): value for n, value in each.items()} for each in (actual, expected))
    assert set(actual) == set(expected)
    for name, value in expected.items():
        if not (hosts.IS_KERAS2 and name == "weight_names"):  # unique in its graph
            np.testing.assert_array_equal(actual[name], value, err_msg=name)


# -- formats -------------------------------------------------------------------------------------

# save(model, folder); load(folder, fresh), where fresh() returns an untrained model of that kind.
Format = namedtuple("Format", "save load")


def file(name, custom_objects=CLASSES):
    """A whole model in a file."""

    def load(folder, fresh):
        return eager(keras.models.load_model(str(folder / name), custom_objects=custom_objects))

    return Format(lambda model, folder: model.save(str(folder / name)), load)


def weights_file(name):
    def load(folder, fresh):
        model = fresh()
        if hosts.IS_KERAS3:
            hosts.build(model)
        model.load_weights(folder / name)
        return model

    return Format(lambda model, folder: model.save_weights(folder / name), load)


def saved_model():
    def load(folder, fresh):
        model = keras.models.load_model(folder / "folder", custom_objects=CLASSES)
        if hosts.IS_NEW_STYLE:  # Keras leaves these optimizers fresh, the stock ones as well
            hosts.build(model)
        model.load_weights(folder / "folder" / "variables" / "variables").expect_partial()
        return eager(model)

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


def state_and_weights():
    def save(model, folder):
        np.savez(folder / "state.npz", **inner(model.optimizer).get_state())
        np.savez(folder / "weights.npz", *map(portable, model.get_weights()))

    def load(folder, fresh):
        model = fresh()
        with np.load(folder / "weights.npz") as file:
            model.set_weights(list(file.values()))
        with np.load(folder / "state.npz") as file:
            model.optimizer.set_state(dict(file))
        return model

    return Format(save, load)


def pickled():
    def save(model, folder):
        whole = model.optimizer, model.get_weights()
        (folder / "pickle").write_bytes(pickle.dumps(whole))

    def load(folder, fresh):
        optimizer, values = pickle.loads((folder / "pickle").read_bytes())
        model = model_with(optimizer)
        model.set_weights(values)
        return model

    return Format(save, load)


MAIN = {"h5": file("m.h5")}
if not hosts.IS_KERAS2:
    MAIN["keras"] = file("m.keras")
last = list(MAIN)[-1]
FORMATS = {**MAIN, "registered": file(f"m.{last}", custom_objects=None)}
if hosts.IS_KERAS3:
    FORMATS["weights"] = weights_file("m.weights.h5")
if hosts.IS_TF_KERAS:
    FORMATS["weights"] = weights_file("weights")
    FORMATS["saved_model"] = saved_model()
    FORMATS["checkpoint"] = checkpoint()
COPIES = {"pickle": pickled(), "state": state_and_weights()}
ALL = {**FORMATS, **COPIES}


def through(form):
    """Return a function that passes on what a model has to a model from `make`."""

    def act(model, folder, make=fresh):
        folder = folder / form
        folder.mkdir(exist_ok=True)
        ALL[form].save(model, folder)
        return ALL[form].load(folder, make)

    return act


def from_list(source, folder, make=fresh):
    model = make()
    model.set_weights(source.get_weights())
    model.optimizer.set_weights(list(map(hosts.array, hosts.listed(source.optimizer))))
    return model


SAVED = [(row, form) for row in ROWS for form in MAIN]
SAVED += [("adam", form) for form in ALL if form not in MAIN]
HALVES = [row for row in ("half", "mixed", "bfloat16") if row in ROWS]
SAVED += [(row, form) for row in HALVES for form in ("checkpoint", "state") if form in ALL]
# Keras holds no bfloat16 in these files. For the loss scale, see test_saving.py.
NOT_HELD = [("bfloat16", "h5")] + [("bfloat16", "keras")] * hosts.IS_TF_KERAS
NOT_HELD += [("scaled", "h5")] * (not hosts.IS_LEGACY)
SAVED = [pair for pair in SAVED if pair not in NOT_HELD]


def in_new_process(root):
    """Continue from all files. What is wrong is the message with which the process ends."""
    hosts.set_floatx(hosts.FLOATX)
    wrong = []
    for row, form in SAVED:
        hosts.set_random_seed()  # on TensorFlow 1 this empties the graph too
        try:
            model = ALL[form].load(root / row / form, functools.partial(fresh, row))
            with np.load(root / row / "end.npz") as expected:
                assert_same(everything(go_on(model, STOP)), dict(expected))
        except Exception:
            wrong.append(f"{row}-{form}: {traceback.format_exc()}")
    sys.exit("\n\n".join(wrong) or None)


if __name__ == "__main__":
    in_new_process(Path(sys.argv[1]))
