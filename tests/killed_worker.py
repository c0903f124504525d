"""One of two workers, one of which is killed: `python killed_worker.py FOLDER EPOCHS [DIES]`.

The worker trains by `fit` with `BackupAndRestore`, with TF_CONFIG in the environment, and writes
the weights to FOLDER. The worker with the index DIES is killed in the last epoch, in the middle of
a window. See test_distribution.py.
"""

import json
import os
import signal
import sys
from pathlib import Path

# The strategy comes before all other uses of TensorFlow: it must start the server of this process.
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import hosts  # noqa: E402
import numpy as np  # noqa: E402
from cases import CASES, LATE  # noqa: E402
from hosts import keras  # noqa: E402
from training import MICRO, compiled, data, dense_model, weights  # noqa: E402

folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
dies = sys.argv[3:] == [str(worker)]


class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if dies and (self.epoch, batch) == (epochs - 1, 2):
            os.kill(os.getpid(), signal.SIGKILL)


hosts.set_floatx(hosts.FLOATX)
case = CASES["adam"]
with strategy.scope():
    optimizer = hosts.ours(case.name, accum_iters=5, **case.arguments, **LATE)
    model = compiled(dense_model(), optimizer)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
batches = tf.data.Dataset.from_tensor_slices(data()).batch(MICRO).with_options(options)
backup = keras.callbacks.BackupAndRestore(str(folder / "backup"))
callbacks = [backup, Die(), hosts.accum.PythonGate()]
model.fit(batches, epochs=epochs, verbose=0, callbacks=callbacks)
np.savez(folder / f"end-{worker}.npz", **weights(model), updates=optimizer.completed_updates)
