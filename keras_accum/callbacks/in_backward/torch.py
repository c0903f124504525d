"""Gradients that `backward` itself adds to the sums of a window, on PyTorch.

PyTorch calls a hook as soon as the gradient of a parameter is complete. The hook adds the gradient
to its sum and frees it, while `backward` goes on: the gradients never exist all at once.
"""

import contextlib
import math

import torch

from keras_accum import state
from keras_accum.callbacks.in_backward import CANT
from keras_accum.gradients import IN_SUM
from keras_accum.host import is_of_keras
from keras_accum.warn import warn
from keras_accum.window import MISSING

_ONCE = (
    "`backward` has added the gradient of {} to its sum already. With AccumulateInBackward, each "
    "train step calls `backward` once, and then the optimizer with `variable.value.grad`."
)
_ELSEWHERE = (
    "`backward` has added the gradient of {} to its sum, and the optimizer wasn't called for the "
    "variable. Call it for all variables that `backward` reaches, or freeze the others."
)
_DROPPED = (
    "The open window was dropped, because AccumulateInBackward.scope ended after `backward` and "
    "before the optimizer was called. The next micro-batch starts a new window."
)


class InBackward:
    """A scope in which `backward` adds the gradients of an optimizer's variables to their sums.

    added: the variables whose gradients of this micro-batch are in their sums, by their keys.
    """

    def __init__(self, optimizer):
        self._accumulation, self._port = optimizer._accumulation, optimizer._accumulation.port
        self.added = {}

    def __enter__(self):
        self._check()
        with contextlib.ExitStack() as hooks:  # after an error, no hook is left
            for variable in self._port.variables:
                if variable.value.requires_grad:  # otherwise there is no gradient
                    register = variable.value.register_post_accumulate_grad_hook
                    hooks.enter_context(register(self._hook_of(variable)))
            self._hooks = hooks.pop_all()
        self._port.in_backward = self
        return self

    def __exit__(self, kind, error, traceback):
        self._hooks.close()
        self._port.in_backward = None
        if self.added:
            self._drop_window()
            if kind is None:
                raise ValueError(_DROPPED)
            warn(_DROPPED)

    def _check(self):
        options = self._accumulation.options
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        for what, is_there in {
            "skip_nonfinite or skip_norm, which need all gradients of a micro-batch before one is "
            "added": options.drops,
            "reduction='weighted', whose weights come with the optimizer's call": options.weighs,
            "torch.distributed, such as DistributedDataParallel, which averages gradients over "
            "processes after `backward` has made them": is_distributed,
        }.items():
            if is_there:
                raise ValueError(CANT.format(what))
        self._accumulation.state.check_is_built("AccumulateInBackward.scope")
        if self._port.in_backward is not None:
            raise ValueError(
                "AccumulateInBackward is in use already for this optimizer: use it once."
            )

    def _hook_of(self, variable):
        port, key = self._port, self._port.key(variable)
        total = self._accumulation.window.sum_of(variable)

        def add(parameter):
            if key in self.added:
                raise ValueError(_ONCE.format(port.name_of(variable)))
            with torch.no_grad():
                port.add([total], [parameter.grad], [variable])
            parameter.grad = None
            self.added[key] = variable

        return add

    def taking(self, gradients, variables):
        """Return a scope for the gradients of a micro-batch; see the port."""
        if self._port.is_traced():  # torch.compile doesn't show an error inside of the scope
            compiled = "torch.compile, which compiles a program that has all gradients at once"
            raise ValueError(CANT.format(compiled))
        return self._taking(gradients, variables)

    @contextlib.contextmanager
    def _taking(self, gradients, variables):
        keys = [self._port.key(variable) for variable in variables]
        for key, variable in self.added.items():
            if key not in keys:
                raise ValueError(_ELSEWHERE.format(self._port.name_of(variable)))
            if gradients[keys.index(key)] is not None:
                raise ValueError(_ONCE.format(self._port.name_of(variable)))
        yield [IN_SUM if key in self.added else g for key, g in zip(keys, gradients)]
        self.added.clear()  # not after an error: then the sums have what no counter counts

    # -- the update --------------------------------------------------------------------------------

    def groups(self, variables):
        """Return the groups of variables, as lists of indices, that an update treats in turn.

        An update has temporary tensors for a group at a time. No group is larger than the largest
        variable. There is one group if the update might not be the same in parts: if the optimizer
        isn't Keras's own, has state that variables share, or takes the data type from the first
        variable and there are several.
        """
        stock = self._port.stock
        of_rule = set(self._port.named()) - {"completed_updates", "learning_rate"}
        shares = any(state.index_of(name) is None for name in of_rule)
        if not is_of_keras(stock) or shares or len({v.dtype for v in variables}) > 1:
            return [list(range(len(variables)))]
        sizes = [math.prod(variable.shape) for variable in variables]
        groups, room = [], 0
        for index, size in enumerate(sizes):
            if size > room or not groups:
                groups.append([])
                room = max(sizes)
            groups[-1].append(index)
            room -= size
        return groups

    def _drop_window(self):
        self.added.clear()
        emptied = {"window_position", MISSING}
        with torch.no_grad():
            for name, variable in self._accumulation.window.named.items():
                if name in emptied or name.startswith("accumulator."):
                    variable.value.zero_()
