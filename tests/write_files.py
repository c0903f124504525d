"""Write the files that later releases must still read: `python write_files.py FOLDER`.

Run it once per release on each host and backend. `test_kept_files.py` reads the files.
"""

import sys
from collections import namedtuple
from pathlib import Path

import hosts
import numpy as np
import training
from cases import CASES
from hosts import accum, keras
from training import LENGTH, go_on

import keras_accum

STOP = LENGTH + 2  # two micro-batches into the second window
if hosts.IS_KERAS2:
    WRITER = "keras2_2_2" if keras.__version__ < "2.3" else "keras2_2_3"
elif hosts.IS_KERAS3:
    WRITER = f"keras3_{hosts.BACKEND}"
else:
    WRITER = "tf_keras" if keras.__name__.startswith("tf_keras") else "tf_keras_2_15"


def rows_of(writer, release):
    is_keras2 = writer.startswith("keras2")
    rows = ["momentum", "adam", "rmsprop" if is_keras2 else "rmsprop_both"]
    if release != "0.1.0":  # which had four optimizers
        rows += ["nadam", "adamw"] if writer.startswith("keras3") else ["nadam"]
    if is_keras2 and release not in ("0.1.0", "0.2.0"):  # which has four again
        rows.remove("nadam")
    return rows


def fresh(row):
    name, arguments = CASES[row]
    optimizer = hosts.ours(name, **arguments, accum_iters=LENGTH)
    # A `.keras` file stores jit_compile, and PyTorch can't compile everything that JAX can.
    settings = {"jit_compile": False} if hosts.IS_KERAS3 else {}
    loss = hosts.mean_squared_error()
    return training.compiled(training.dense_model(), optimizer, loss, **settings)


def write(folder):
    folder.mkdir(parents=True)
    write_tensorflow(folder)
    for row in rows_of(WRITER, keras_accum.__version__):
        x, y = training.data()
        model = fresh(row)
        go_on(model, 0, STOP, arrays=(x, y))
        if not hosts.IS_KERAS2:
            model.save(folder / f"{row}.keras")
        if hosts.IS_KERAS3:
            model.save_weights(folder / f"{row}.weights.h5")
        model.save(str(folder / f"{row}.h5"))
        np.savez(folder / f"{row}.state.npz", **model.optimizer.get_state())
        truth = {f"saved_{i}": w for i, w in enumerate(model.get_weights())}
        go_on(model, STOP, arrays=(x, y))
        truth.update({f"end_{i}": w for i, w in enumerate(model.get_weights())})
        np.savez(folder / f"{row}.truth.npz", x=x, y=y, **truth)


# -- TensorFlow's own formats --------------------------------------------------------------------

# An Adam or AdamW whose state a checkpoint holds. The rows of the newer style of tf_keras are new.
Row = namedtuple("Row", "name is_new arguments forms")
MEAN, WEIGHTED = {}, {"reduction": "weighted"}
CHECKPOINTS = {
    "mean": Row("Adam", False, MEAN, ["checkpoint", "tf_weights", "saved_model"]),
    "weighted": Row("Adam", False, WEIGHTED, ["checkpoint"]),
    "missing": Row("Adam", False, MEAN, ["checkpoint"]),
    "new_mean": Row("Adam", True, MEAN, ["checkpoint"]),
    "new_weighted": Row("Adam", True, WEIGHTED, ["checkpoint"]),
    "new_missing": Row("Adam", True, MEAN, ["checkpoint"]),
    "new_adamw": Row("AdamW", True, MEAN, ["checkpoint", "tf_weights", "saved_model"]),
}


def checkpoints_of(writer, release):
    """Return {row: forms} of the files in TensorFlow's own formats."""
    if release == "0.1.0" or writer not in ("keras3_tensorflow", "tf_keras", "tf_keras_2_15"):
        return {}
    if writer == "keras3_tensorflow":  # which has one style, and writes only checkpoints
        return {name: ["checkpoint"] for name, row in CHECKPOINTS.items() if not row.is_new}
    # One writer's SavedModels are enough: each takes as much room as all other forms of a row.
    left_out = () if writer == "tf_keras" else ("saved_model",)
    return {
        name: [form for form in row.forms if form not in left_out]
        for name, row in CHECKPOINTS.items()
    }


def adam(row, is_stock=False):
    row, arguments = CHECKPOINTS[row], {"learning_rate": 2**-5}
    more = {"accum_iters": LENGTH, **row.arguments}
    if row.is_new:
        stock = getattr(keras.optimizers, row.name)
        return stock(**arguments) if is_stock else accum.accumulating(stock)(**arguments, **more)
    if is_stock:
        return hosts.stock(row.name, **arguments)
    return hosts.ours(row.name, **arguments, **more)


def fresh_adam(row):
    return training.compiled(training.dense_model(), adam(row), hosts.mean_squared_error())


def micro_batches(row, values, variables):
    """Return one list per micro-batch, with a pair (weight, {index: gradient})."""
    found = []
    for number, value in enumerate(values):
        ends = np.cumsum([np.prod(v.shape) for v in variables])[:-1]
        parts = dict(enumerate(np.split(value, ends)))
        gradients = {i: part.reshape(variables[i].shape) for i, part in parts.items()}
        if "missing" in row and number // LENGTH == 1:  # the window that is open in the file
            del gradients[0]
            if number == STOP - 1:
                del gradients[1]
        weight = 1 + number % 3 if "weighted" in row else 1
        found.append((weight, gradients))
    return found


def step(optimizer, gradients, variables):
    hosts.apply(optimizer, list(gradients.values()), [variables[i] for i in gradients])


def accumulate(model, row, values, start=0, stop=None):
    """Apply gradients as a hand-written loop does, from micro-batch `start` to `stop`."""
    variables = model.trainable_variables
    for weight, gradients in micro_batches(row, values, variables)[start:stop]:
        if "weighted" in row:
            model.optimizer.weigh(weight)
        step(model.optimizer, gradients, variables)


def write_tensorflow(folder):
    for row, forms in checkpoints_of(WRITER, keras_accum.__version__).items():
        model = fresh_adam(row)
        hosts.build(model)
        truth = {f"start_{i}": w for i, w in enumerate(model.get_weights())}
        # Far from 0, so that each update moves each weight.
        random = np.random.default_rng(3)
        size = sum(w.size for w in truth.values())
        values = random.uniform(0.5, 1.5, (3 * LENGTH, size)) * random.choice([-1, 1], size)
        values = values.astype("float32")
        accumulate(model, row, values, stop=STOP)
        np.savez(folder / f"{row}.truth.npz", gradients=values, **truth)
        whole = hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        whole.write(str(folder / f"{row}.checkpoint"))
        if "tf_weights" in forms:
            model.save_weights(folder / f"{row}.tf_weights")
            (folder / "checkpoint").unlink()  # a note which file is the latest
        if "saved_model" in forms:
            # Without traces, which hold no state and take most of the room.
            path = folder / f"{row}.saved_model"
            model.save(path, save_format="tf", save_traces=False)


if __name__ == "__main__":
    hosts.FLOATX = "float32"
    hosts.set_floatx("float32")
    write(Path(sys.argv[1]) / WRITER)
