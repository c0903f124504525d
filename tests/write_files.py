"""Write the files that later releases must still read: `python write_files.py FOLDER`.

Run it once per release on each host and backend. `test_kept_files.py` reads the files.
"""

import sys
from pathlib import Path

import hosts
import numpy as np
import training
from cases import CASES
from hosts import keras
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


if __name__ == "__main__":
    hosts.FLOATX = "float32"
    hosts.set_floatx("float32")
    write(Path(sys.argv[1]) / WRITER)
