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
import pytest  # noqa: E402
import torch  # noqa: E402
from cases import ADAM  # noqa: E402
from processes import uneven_shares  # noqa: E402
from training import (  # noqa: E402
    compiled,
    contrastive,
    data,
    dense_model,
    fit,
    scaled_model,
    slots,
    weights,
)

torch.distributed.init_process_group("gloo")


class Wrapped(hosts.keras.Sequential):
    """Trains by DistributedDataParallel on Keras 3.15, as any model does on 3.16."""

    def train_step(self, batch):
        x, y, _ = hosts.keras.utils.unpack_x_y_sample_weight(batch)
        self.zero_grad()
        y_pred = self.ddp_model(x, training=True)
        self.compute_loss(x=x, y=y, y_pred=y_pred).backward()
        trained = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([w.value.grad for w in trained], trained)
        return {}


def loop(seed):
    """A loop of one's own, whose processes have shares of different sizes."""
    micro_batches, accum_iters = uneven_shares(seed)
    arguments = {**ADAM.arguments, "accum_iters": accum_iters, "reduction": "weighted"}
    model = compiled(dense_model(), hosts.ours("Adam", **arguments))
    optimizer, parallel = model.optimizer, torch.nn.parallel.DistributedDataParallel(model)
    optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match="needs the loss.*`loss = optimizer.weigh.weight, loss.`"):
        optimizer.weigh(1.0)
    for shares in micro_batches:
        x, y = map(torch.tensor, shares[int(rank)])
        parallel.zero_grad()
        loss = torch.mean((parallel(x, training=True) - y) ** 2)
        optimizer.weigh(len(x), loss).backward()
        with torch.no_grad():
            optimizer.apply([w.value.grad for w in model.trainable_weights])
    optimizer.apply_partial_window()
    return {**weights(model), **slots(model)}


def train(loss, dtype, batch_size, lacks, ours, slices):
    if ours:
        optimizer = hosts.ours("Adam", **ADAM.arguments, **ours)
    else:
        optimizer = hosts.stock("Adam", **ADAM.arguments)
    if loss == "scaled":
        model = scaled_model(optimizer)
    else:
        losses = {"contrastive": contrastive}
        model = compiled(dense_model(dtype=dtype), optimizer, losses.get(loss, loss))
    weighs = ours.get("reduction") == "weighted"
    if not hosts.IS_KERAS_3_16:
        if weighs:
            model.__class__ = Wrapped
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
    found = loop(**arguments) if "seed" in arguments else train(**arguments)
    np.savez(f"{result}-{rank}-{name}.npz", **found)
# Otherwise a thread of gloo may end the process with an error.
torch.distributed.barrier()
torch.distributed.destroy_process_group()
