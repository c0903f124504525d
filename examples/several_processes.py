"""A loop in several processes, with DistributedDataParallel: y = x squared at 50 points. PyTorch.

`torchrun --nproc_per_node 2 several_processes.py` gives the weights of one process with Adam and
batches of 21, for any number of processes. On a machine without GPUs, it runs on its CPUs.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # set by torchrun

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from keras_accum import AdamAccumulate  # noqa: E402

MICRO_BATCH, ACCUM_ITERS, EPOCHS = 7, 3, 3  # a micro-batch of all processes together

if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group()
keras.utils.set_random_seed(0)  # the same initial weights in each process

x = torch.linspace(-1, 1, 50)[:, None]
data = torch.utils.data.TensorDataset(x, x**2)


class Shares(torch.utils.data.Sampler):
    """This process's share of each micro-batch, in an order that the number of the epoch tells.

    PyTorch's DistributedSampler repeats samples until all shares have one size. These don't, so
    shares differ by one sample, and the last one may be empty.
    """

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(len(data))
        for i in range(0, len(data), MICRO_BATCH):
            yield torch.tensor(order[i : i + MICRO_BATCH][rank::processes])


shares = Shares()
loader = torch.utils.data.DataLoader(data, sampler=shares, batch_size=None)
model = keras.Sequential(
    [keras.Input((1,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
)
optimizer = AdamAccumulate(1e-2, accum_iters=ACCUM_ITERS)
optimizer.build(model.trainable_variables)
parallel = torch.nn.parallel.DistributedDataParallel(model)

for epoch in range(EPOCHS):
    shares.set_epoch(epoch)
    for x_micro, y_micro in loader:
        parallel.zero_grad()  # on every micro-batch: the optimizer has the sum
        y_pred = parallel(x_micro, training=True)
        errors = torch.sum((y_pred - y_micro.to(y_pred.device)) ** 2)
        loss = errors / max(len(x_micro), 1)  # of an empty share, 0 and not 0 / 0
        loss = optimizer.weigh(len(x_micro), loss)  # in all processes, before `backward`
        loss.backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in model.trainable_variables])
    optimizer.apply_partial_window()  # with the micro-batches that are left
    if rank == 0:
        model.save_weights("model.weights.h5")
        np.savez("optimizer.npz", **optimizer.get_state())
        print(f"epoch {epoch}: {optimizer.completed_updates} updates")
torch.distributed.barrier()  # until the files are written
torch.distributed.destroy_process_group()
