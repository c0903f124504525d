"""Python waits for a device of PyTorch where a number goes from one to the other. We add no wait.

The device isn't there: its tensors lie in the memory of the CPU and say "cuda:0", so that they have
values. Each copy to or from the device waits, and what CUDA refuses is refused.
"""

from collections import namedtuple

import hosts
import numpy as np
import pytest
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, data, dense_model, fit

if not hosts.IS_TORCH:
    pytest.skip("about the devices of PyTorch", allow_module_level=True)

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree

CUDA = torch.device("cuda:0")
COPIES = "to", "cpu", "copy_", "as_tensor", "tensor"
READS = "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "equal"


class OnDevice(torch.Tensor):
    """A tensor on the device. Only `Device` makes it and computes with it."""

    device = property(lambda self: CUDA)
    __torch_function__ = torch._C._disabled_torch_function_impl


def is_device(argument):
    is_name = isinstance(argument, (str, torch.device))
    return is_name and str(argument).partition(":")[0] in ("cpu", "cuda")


class Device(TorchFunctionMode):
    """A scope in which PyTorch has a CUDA device. `waits` names the functions that wait for it."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = function.__name__, kwargs or {}
        named = [str(x) for x in (*args, *kwargs.values()) if is_device(x)]
        args = ["cpu" if is_device(x) else x for x in args]
        kwargs = {key: "cpu" if is_device(x) else x for key, x in kwargs.items()}
        tensors = [x for x in tree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        are_there = [isinstance(x, OnDevice) for x in tensors]
        is_there = "cuda" in named[0] if named else any(are_there) and name != "cpu"
        copies = name in COPIES and len({is_there, *(are_there or [False])}) > 1
        reads = any(are_there) and (name in READS or isinstance(kwargs.get("alpha"), OnDevice))
        if copies or reads:
            self.waits.append(name)
        elif any(are_there):
            arrays = [x for x in tensors if x.dim()]
            if name in ("numpy", "__array__") or len({isinstance(x, OnDevice) for x in arrays}) > 1:
                raise RuntimeError(f"CUDA refuses {name} of tensors that are elsewhere")

        def place(tensor):
            if isinstance(tensor, OnDevice) == is_there:
                return tensor
            tensor = tensor.clone() if copies else tensor
            return tensor.as_subclass(OnDevice if is_there else torch.Tensor)

        return tree.tree_map_only(torch.Tensor, place, function(*args, **kwargs))


def there(value):
    return torch.tensor(value, dtype=torch.float32, device="cuda")


@pytest.fixture
def device():
    with keras.device("gpu:0"), Device() as device:
        yield device


SHAPES = (3, 2), (2,)
WINDOWS = 2
INSIDE = [0] * (LENGTH - 1)

# shared: arguments of both optimizers. ours: arguments of ours alone. inside: the waits of the
# micro-batches before the last one of a window. weights: in which form a step says its weight.
Row = namedtuple("Row", "name shared ours inside weights")
Row.__new__.__defaults__ = {}, {}, INSIDE, None
WEIGHTED = {"reduction": "weighted"}
LENGTHS = {"accum_iters": hosts.accum.AccumulationSchedule({0: LENGTH})}
ROWS = {
    "adam": Row("Adam"),
    "sgd": Row("SGD"),
    "clipnorm": Row("Adam", {"clipnorm": 0.5}),
    "schedule": Row("Adam", {"learning_rate": hosts.EachUpdate([0.25, 0.125])}),
    "ema": Row("Adam", {"use_ema": True}),
    "numbers_as_weights": Row("Adam", ours=WEIGHTED, weights=float),
    "tensors_as_weights": Row("Adam", ours=WEIGHTED, weights=there),
    # What Python must know: the number of updates when a window opens; whether to drop gradients.
    "lengths": Row("Adam", ours=LENGTHS, inside=[1, *INSIDE[1:]]),
    "skip_nonfinite": Row("Adam", ours={"skip_nonfinite": True}, inside=[1] * len(INSIDE)),
    "skip_norm": Row("Adam", ours={"skip_norm": 1e6}, inside=[1] * len(INSIDE)),
}


def train(device, optimizer, micro_batches, weights=None):
    """Return the number of waits in each micro-batch, and the trained weights."""
    variables = [keras.Variable(np.ones(shape, "float32")) for shape in SHAPES]
    optimizer.build(variables)
    counts = []
    for i, arrays in enumerate(micro_batches):
        grads = list(map(there, arrays))
        device.waits.clear()
        if weights is not None:
            optimizer.weigh(weights[i])
        optimizer.apply(grads, variables)
        counts.append(len(device.waits))
    return counts, {str(i): hosts.array(v.value.cpu()) for i, v in enumerate(variables)}


@pytest.mark.parametrize("name", ROWS)
def test_waits_of_a_window(device, name):
    """Inside, only what Python must know; at the end, what the stock optimizer waits for."""
    row, random, count = ROWS[name], np.random.default_rng(1), WINDOWS * LENGTH
    gradients = [random.uniform(0.5, 1.5, (count, *shape)).astype("float32") for shape in SHAPES]
    weights = random.uniform(1, 2, count) if row.weights else np.ones(count)
    windows = [slice(start, start + LENGTH) for start in range(0, count, LENGTH)]
    big = [[np.average(g[w], 0, weights[w]).astype("float32") for g in gradients] for w in windows]
    shared = {"learning_rate": 0.25, **row.shared}
    of_stock, expected = train(device, hosts.stock(row.name, **shared), big)
    said = row.weights and list(map(row.weights, weights))
    ours = hosts.ours(row.name, **{"accum_iters": LENGTH, **shared, **row.ours})
    counts, actual = train(device, ours, list(zip(*gradients)), said)
    assert_equal(actual, expected)
    most = max(of_stock) + row.inside[-1]
    for window in windows:
        *inside, end = counts[window]
        assert inside == row.inside and 0 < end <= most


def test_the_callback_that_weighs_adds_no_wait(device):
    """Micro-batches in `fit`, in which Keras itself waits."""
    arrays, found = [array[: (LENGTH - 1) * MICRO] for array in data()], []
    for reduction, callbacks in ("mean", []), ("weighted", [hosts.accum.MicroBatchWeights()]):
        optimizer = hosts.ours("Adam", accum_iters=LENGTH, reduction=reduction)
        model = compiled(dense_model(kernel_initializer="ones"), optimizer)
        optimizer.build(model.trainable_variables)
        device.waits.clear()
        fit(model, MICRO, arrays, epochs=1, callbacks=callbacks)
        found.append(list(device.waits))
    assert found[0] and found[1] == found[0]
