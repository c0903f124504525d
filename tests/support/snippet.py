"""Run a script of docs/devices.md in one of its processes: `python snippet.py SCRIPT RESULT RANK`.

The environment has the number of PROCESSES and an ADDRESS. See documents/test_devices.py.
"""

import functools
import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path

import numpy as np

BIG, MICRO, UPDATES = 512, 64, 6


def data():
    random = np.random.default_rng(5)
    x, y = (random.uniform(*ends, (UPDATES * BIG, n)) for ends, n in [((-1, 1), 3), ((1, 2), 2)])
    return x, y


def make_model():
    import hosts
    import training

    hosts.set_floatx(hosts.FLOATX)
    model = training.initialize(training.dense_model())
    model.fit = functools.partial(model.fit, shuffle=False, verbose=0)
    return model


def pretend_horovod():
    """Horovod's mechanism in one process: a class made by `type()` that reduces its gradients."""
    hvd = types.ModuleType("horovod.keras")

    def distributed(optimizer):
        def get_gradients(self, loss, params):
            hvd.reductions += 1
            return super(cls, self).get_gradients(loss, params)

        base = type(optimizer)
        cls = type(base.__name__, (base,), {"get_gradients": get_gradients})
        return cls.from_config(optimizer.get_config())

    from hosts import keras

    hvd.init, hvd.rank, hvd.size = (lambda: None), (lambda: 0), (lambda: 1)
    hvd.DistributedOptimizer, hvd.reductions = distributed, 0
    broadcast = {"BroadcastGlobalVariablesCallback": lambda root: keras.callbacks.Callback()}
    hvd.callbacks = types.SimpleNamespace(**broadcast)
    sys.modules.update({"horovod": types.ModuleType("horovod"), "horovod.keras": hvd})


def main(script, result, rank):
    rank, processes = int(os.environ.get("HOROVOD_RANK", rank)), int(os.environ["PROCESSES"])
    left = int(os.environ.get("LEFT", 0))  # samples that don't fill a big batch
    x, y = (np.concatenate([array, array[:left]]) for array in data())
    names = {"make_model": make_model, "x": x, "y": y, "address": os.environ["ADDRESS"]}
    names.update(rank=rank, processes=processes)
    if os.environ.get("KERAS_BACKEND") == "torch":
        names["Counting"] = importlib.import_module("count_reductions").Counting  # before Keras
    if "TF_CONFIG" not in os.environ:  # else the strategy comes before other uses of TensorFlow
        import hosts

        if hosts.IS_KERAS2 and not importlib.util.find_spec("horovod"):
            pretend_horovod()
        elif hosts.IS_TENSORFLOW and not hosts.IS_KERAS2:
            strategy = hosts.tf.distribute.MirroredStrategy
            hosts.tf.distribute.MirroredStrategy = lambda: strategy(["CPU:0", "CPU:1"])
    # Eight devices for JAX in all, unless a test says otherwise; `hosts` has set two.
    devices = int(os.environ.get("DEVICES", 8)) // processes
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    exec(Path(script).read_text("utf-8"), names)

    from training import weights

    reductions = getattr(names.get("Counting", names.get("hvd")), "reductions", -1)
    np.savez(f"{result}-{rank}.npz", **weights(names["model"]), reductions=reductions)
    if "torch" in sys.modules and processes > 1:
        end_processes()


def end_processes():
    """Wait for each other. Otherwise a thread of gloo may end a process with an error."""
    distributed = importlib.import_module("torch.distributed")
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
