"""Accumulation written by hand in PyTorch, without Keras.

`backward()`, which adds up gradients by itself, is called k times before a `torch.optim.Adam` step.
"""

from . import alone
from .networks import CLASSES, NETWORKS, draw


def windows(keras, network, k, micro_batch, micro_batches):
    """Return a function that trains on this number of micro-batches."""
    import torch

    if network == alone.NAME:
        return _alone(torch, k, micro_batches)
    nn = torch.nn
    dense = [layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    conv = nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
    head = nn.ReLU(), nn.Linear(128, CLASSES)
    layers = {
        "mlp": (*dense, nn.Linear(1024, CLASSES)),
        "conv_net": (*conv, nn.Flatten(), nn.Linear(64 * 12 * 12, 128), *head),
        "embedding": (nn.EmbeddingBag(50_000, 64), nn.Linear(64, 128), *head),
    }
    model = nn.Sequential(*layers[NETWORKS[network].__name__])
    x, y = draw(NETWORKS[network](keras)[1], micro_batch * micro_batches)
    x = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    x, y = torch.as_tensor(x).split(micro_batch), torch.as_tensor(y)[:, 0].split(micro_batch)
    optimizer = torch.optim.Adam(model.parameters())

    def run():
        for i, (inputs, targets) in enumerate(zip(x, y), 1):
            (nn.functional.cross_entropy(model(inputs), targets) / k).backward()
            if i % k == 0:
                optimizer.step()
                optimizer.zero_grad()

    return run


def _alone(torch, k, micro_batches):
    parameters = [torch.randn(shape, requires_grad=True) for shape in alone.SHAPES]
    gradients = [torch.randn(shape) for shape in alone.SHAPES]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    sums = [parameter.grad for parameter in parameters]
    optimizer = torch.optim.Adam(parameters)

    def run():
        for i in range(1, micro_batches + 1):
            torch._foreach_add_(sums, gradients)
            if i % k == 0:
                torch._foreach_div_(sums, k)
                optimizer.step()
                torch._foreach_zero_(sums)

    return run
