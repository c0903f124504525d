"""Accumulation written by hand in PyTorch, without Keras.

`backward()`, which adds up gradients by itself, is called k times before a `torch.optim.Adam` step.
"""

from . import alone
from .networks import CLASSES, NETWORKS, draw


def windows(network, k, micro_batch, micro_batches):
    """Return a function that trains on this number of micro-batches."""
    import torch

    if network == alone.NAME:
        return _alone(torch, k, micro_batches)
    import keras

    nn = torch.nn
    model = {
        "mlp": lambda: nn.Sequential(
            *(layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.ReLU())),
            nn.Linear(1024, CLASSES),
        ),
        "conv_net": lambda: nn.Sequential(
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
        ),
        "embedding": lambda: nn.Sequential(
            *(nn.EmbeddingBag(50_000, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
        ),
    }[NETWORKS[network].__name__]()
    x, y = draw(NETWORKS[network](keras)[1], micro_batch * micro_batches)
    if x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    x, y = torch.as_tensor(x).split(micro_batch), torch.as_tensor(y)[:, 0].split(micro_batch)
    optimizer = torch.optim.Adam(model.parameters())

    def run():
        for i, (inputs, targets) in enumerate(zip(x, y)):
            (nn.functional.cross_entropy(model(inputs), targets) / k).backward()
            if (i + 1) % k == 0:
                optimizer.step()
                optimizer.zero_grad()

    return run


def _alone(torch, k, micro_batches):
    parameters = [torch.randn(shape, requires_grad=True) for shape in alone.SHAPES]
    grads = [torch.randn(shape) for shape in alone.SHAPES]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.Adam(parameters)

    def run():
        for i in range(micro_batches):
            torch._foreach_add_([p.grad for p in parameters], grads)
            if (i + 1) % k == 0:
                torch._foreach_div_([p.grad for p in parameters], k)
                optimizer.step()
                torch._foreach_zero_([p.grad for p in parameters])

    return run
