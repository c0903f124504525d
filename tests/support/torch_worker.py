"""One of two PyTorch processes: `python torch_worker.py RESULT RANK TRAININGS`.

Each process trains in `fit` on half of each batch. Since version 3.16, Keras wraps the model in
DistributedDataParallel; before, the wrapper is put where that version keeps it, for MicroBatches.
See test_distribution.py.
"""

import json
import sys

import count_reductions  # first, because Keras imports the class that it replaces

result, rank, trainings = sys.argv[1:]

import hosts  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from cases import ADAM  # noqa: E402
from training import compiled, contrastive, data, dense_model, fit, slots, weights  # noqa: E402

torch.distributed.init_process_group("gloo")


def train(loss, dtype, batch_size, lacks, ours, slices):
    if ours:
        optimizer = hosts.ours("Adam", **ADAM.arguments, **ours)
    else:
        optimizer = hosts.stock("Adam", **ADAM.arguments)
    losses = {"contrastive": contrastive}
    model = compiled(dense_model(dtype=dtype), optimizer, losses.get(loss, loss))
    if not hosts.IS_KERAS_3_16:
        object.__setattr__(model, "ddp_model", count_reductions.Counting(model))
    share = [array[int(rank) :: 2][: 12 - int(rank) * lacks] for array in data()]
    callbacks = [hosts.accum.MicroBatches(**slices)] if slices else []
    count_reductions.Counting.reductions = 0
    try:
        history = fit(model, batch_size, share, callbacks=callbacks).history
        # Before, each process has its own loss.
        loss = history["loss"][-1] if hosts.IS_KERAS_3_16 else 0
        found = {**weights(model), **slots(model), "loss": loss}
        found = {name: np.asarray(value).astype("float32") for name, value in found.items()}
    except ValueError as error:
        found = {"refused": "can't be used with several replicas or processes" in str(error)}
    return {**found, "reductions": count_reductions.Counting.reductions}


for name, arguments in json.loads(trainings).items():
    np.savez(f"{result}-{rank}-{name}.npz", **train(**arguments))
