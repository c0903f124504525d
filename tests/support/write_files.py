"""Write the files that later releases must still read: `python write_files.py FOLDER`.

Run it once per release on each host and backend. `test_kept_files.py` reads the files.
"""

import sys
from pathlib import Path

import hosts
import numpy as np
import training
from cases import ADAM, CASES
from hosts import keras
from training import LENGTH

STOP = LENGTH + 2  # two micro-batches into the second window
STEPS = 3 * LENGTH
if hosts.IS_KERAS2:
    WRITER = "keras2_2_2" if keras.__version__ < "2.3" else "keras2_2_3"
elif hosts.IS_KERAS3:
    WRITER = f"keras3_{hosts.BACKEND}"
elif hosts.IS_NEW_STYLE:
    WRITER = "tf_keras_new"
else:
    WRITER = "tf_keras" if keras.__name__.startswith("tf_keras") else "tf_keras_2_15"

# A dozen models: {writer: {row: formats}}. Files of all writers hold the same state in other names.
KEPT = {
    "keras2_2_2": {"amsgrad": ["h5"]},
    "keras2_2_3": {"rmsprop": ["h5"]},
    "keras3_jax": {"adamw": ["keras"], "nadam": ["h5"]},
    "keras3_tensorflow": {"weighted": ["checkpoint"]},
    "keras3_torch": {"adam": ["weights.h5"]},
    "tf_keras": {
        "adam": ["h5"],
        "nadam": ["keras"],
        "mean": ["saved_model"],
        "missing": ["checkpoint"],
    },
    "tf_keras_2_15": {"weighted": ["checkpoint"]},
    "tf_keras_new": {"adamw": ["h5"]},
}
# Rows that are trained by given gradients, with weights or without some of them.
BY_GRADIENTS = ("mean", "weighted", "missing")


def fresh(row):
    name, arguments = CASES.get(row, ADAM)
    more = {"reduction": "weighted"} if row == "weighted" else {}
    optimizer = hosts.ours(name, **arguments, accum_iters=LENGTH, **more)
    # A `.keras` file stores jit_compile, and PyTorch can't compile everything that JAX can.
    settings = {"jit_compile": False} if hosts.IS_KERAS3 else {}
    loss = hosts.mean_squared_error()
    return training.compiled(training.dense_model(), optimizer, loss, **settings)


def train_on_truth(model, truth, start, stop=None):
    """Train on the samples of a truth, or apply its gradients: NaN where one is missing."""
    if "x" in truth:
        training.go_on(model, start, stop, arrays=(truth["x"], truth["y"]))
        return
    variables = model.trainable_variables
    ends = np.cumsum([np.prod(v.shape) for v in variables])[:-1]
    for gradient, weight in list(zip(truth["gradients"], truth["weights"]))[start:stop]:
        if model.optimizer.reduction == "weighted":
            model.optimizer.weigh(weight)
        parts = zip(np.split(gradient, ends), variables)
        found = [(part.reshape(v.shape), v) for part, v in parts if not np.isnan(part).any()]
        hosts.apply(model.optimizer, [part for part, _ in found], [v for _, v in found])


def data_of(row, model):
    if row not in BY_GRADIENTS:
        x, y = training.data()
        return {"x": x, "y": y}
    random, sizes = np.random.default_rng(3), [w.size for w in model.get_weights()]
    # Far from 0, so that each update moves each weight.
    signs = random.choice([-1, 1], sum(sizes))
    gradients = (random.uniform(0.5, 1.5, (STEPS, sum(sizes))) * signs).astype("float32")
    if row == "missing":  # in the window that is open in the file
        gradients[LENGTH : 2 * LENGTH, : sizes[0]] = np.nan
        gradients[STOP - 1, : sum(sizes[:2])] = np.nan
    weights = 1 + np.arange(STEPS) % 3 if row == "weighted" else np.ones(STEPS, int)
    return {"gradients": gradients, "weights": weights}


def save(model, path, form):
    if form == "checkpoint":
        hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
    elif form == "weights.h5":
        model.save_weights(path)
    elif form == "saved_model":  # without traces, which hold no state and take most of the room
        model.save(path, save_format="tf", save_traces=False)
    else:
        model.save(path)


def write(folder):
    folder.mkdir(parents=True)
    for row, forms in KEPT[WRITER].items():
        model = fresh(row)
        hosts.build(model)
        truth = data_of(row, model)
        train_on_truth(model, truth, 0, STOP)
        for form in forms:
            save(model, str(folder / f"{row}.{form}"), form)
        if row not in BY_GRADIENTS:
            np.savez(folder / f"{row}.state.npz", **model.optimizer.get_state())
        truth.update({f"saved_{i}": w for i, w in enumerate(model.get_weights())})
        train_on_truth(model, truth, STOP)
        truth.update({f"end_{i}": w for i, w in enumerate(model.get_weights())})
        np.savez(folder / f"{row}.truth.npz", **truth)


if __name__ == "__main__":
    hosts.FLOATX = "float32"
    hosts.set_floatx("float32")
    write(Path(sys.argv[1]) / WRITER)
