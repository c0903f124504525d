"""One of two PyTorch processes: `python torch_worker.py STORE RESULT RANK`.

A hand-written loop with DistributedDataParallel; each process has half of each micro-batch. See
test_distribution.py.
"""

import sys

import hosts
import numpy as np
import torch
from cases import ADAM
from training import EPOCHS, LENGTH, MICRO, batches, compiled, dense_model, slots, weights

store, result, rank = sys.argv[1:]
half = slice(int(rank), None, 2)
torch.distributed.init_process_group("gloo", f"file://{store}", rank=int(rank), world_size=2)

optimizer = hosts.ours("Adam", accum_iters=LENGTH, **ADAM.arguments)
model = compiled(dense_model(), optimizer)
optimizer.build(model.trainable_variables)
parallel = torch.nn.parallel.DistributedDataParallel(model)
for x, y in batches(MICRO) * EPOCHS:
    parallel.zero_grad()
    loss = torch.mean((parallel(torch.tensor(x[half])) - torch.tensor(y[half])) ** 2)
    loss.backward()  # averages the gradients over the processes
    with torch.no_grad():
        optimizer.apply([v.value.grad for v in model.trainable_variables])
np.savez(f"{result}-{rank}-end.npz", **weights(model), **slots(model))

torch.distributed.destroy_process_group()
