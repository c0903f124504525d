"""The optimizer alone.

On JAX, the time of a micro-batch over the floor, four bare additions `acc += g` and one stock
update, of the programs of `accelerators` that are compiled for an H100. On PyTorch, milliseconds
from the call to the device's end with a transformer's variables, inside a window and at its end.
"""

import contextlib
import time

import keras
from shared import contenders
from shared.contenders import DEFAULT, FLOOR, OWN, STOCK
from shared.timing import smallest

from . import networks

K = 5


def measure(options, what):
    """Return {case: {contender: its time}}."""
    rounds = max(options.rounds, 1)
    if keras.backend.backend() == "jax":
        return on_jax(rounds, options.small)
    return on_torch(rounds, networks.of(options)[networks.TRANSFORMER])


def on_jax(rounds, is_small):
    from accelerators import tables
    from accelerators.programs import CASES

    known, found = tables.load()["gpu"]["cases"], {}
    for case in [tables.MANY] if is_small else CASES:
        programs = CASES[case]()
        steps = {name: _step(program) for name, program in programs.items()}
        windows = {name: _window(step) for name, step in steps.items()}
        for run in windows.values():
            run()
        if not known[case][DEFAULT]["waits"][0]:
            _raise_if_it_waits(steps[DEFAULT])
        times = smallest(windows, rounds)
        floor = ((K - 1) * times[FLOOR] + times[STOCK]) / K
        found[case] = {name: round(times[name] / floor, 2) for name in times}
    return found


def _step(program):
    import jax
    import jax.numpy as jnp

    function = jax.jit(program.step, static_argnums=0, donate_argnums=1)
    shapes = program.donated, program.data
    state, data = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    def step(i):
        nonlocal state
        if i % program.micro_batches == 0:
            _, state = function(program.decisions[-1 if i == K else 0], state, data)
        return state

    return step


def _window(step):
    import jax

    def run():
        for i in range(1, K + 1):
            results = step(i)
        jax.block_until_ready(results)

    return run


def _raise_if_it_waits(step):
    import jax

    with jax.transfer_guard_device_to_host("disallow_explicit"):
        for i in range(1, K):
            step(i)
    step(K)


def on_torch(rounds, network):
    import torch

    from keras_accum import AdamAccumulate

    model = network(keras)[0]
    variables = model.trainable_variables
    gradients = [torch.full_like(variable.value, 1e-3) for variable in variables]
    sums = [torch.zeros_like(gradient) for gradient in gradients]
    made = {
        name: contenders.find("keras3")[name].optimizer(networks.WINDOW) for name in (STOCK, OWN)
    }
    made[DEFAULT] = AdamAccumulate(accum_iters=networks.WINDOW)
    made["skip_nonfinite"] = AdamAccumulate(accum_iters=networks.WINDOW, skip_nonfinite=True)
    steps = {FLOOR: lambda: torch._foreach_add_(sums, gradients)}
    for name, optimizer in made.items():
        optimizer.build(variables)
        steps[name] = lambda optimizer=optimizer: optimizer.apply(gradients, variables)
    steps["torch.optim.Adam"] = _adam_of_torch(torch, variables, gradients)
    inside, at_end = {}, {}
    with torch.no_grad():
        for name, step in steps.items():
            times = _times(torch, step, rounds)
            at_end[name] = times[-1]
            if name not in (STOCK, "torch.optim.Adam"):
                inside[name] = round(sum(times[:-1]) / (networks.WINDOW - 1), 3)
        del at_end[FLOOR]
        with _no_waits(torch):
            for _ in range(networks.WINDOW - 1):
                steps[DEFAULT]()
    return {"inside a window": inside, "at its end": at_end}


def _adam_of_torch(torch, variables, gradients):
    parameters = [torch.nn.Parameter(v.value.detach().clone()) for v in variables]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    return torch.optim.Adam(parameters, fused=True).step


def _times(torch, step, rounds):
    """Return the smallest time of each micro-batch of a window, in milliseconds."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times = [[] for _ in range(networks.WINDOW)]
    for _ in range(rounds + 1):  # the first window makes what is made once
        for each in times:
            wait()
            start = time.perf_counter()
            step()
            wait()
            each.append(time.perf_counter() - start)
    return [round(1000 * min(each[1:]), 3) for each in times]


@contextlib.contextmanager
def _no_waits(torch):
    """A scope in which PyTorch raises an error where Python waits for the GPU."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
