"""A CUDA device for PyTorch that isn't there: `with keras.device("gpu:0"), Device() as device:`.

Its tensors lie in the memory of the CPU and say "cuda:0", so that they have values. Each copy to or
from the device waits, and what CUDA refuses is refused. The benchmarks use it, too.
"""

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
    """A scope in which PyTorch has a CUDA device.

    waits: names of the functions called that wait for it. calls: names of all that compute there.
    """

    def __init__(self):
        super().__init__()
        self.waits, self.calls = [], []

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
            if name not in ("__get__", "numel"):  # which Python answers
                self.calls.append(name)
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
