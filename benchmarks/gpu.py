"""What accumulation costs on a GPU: `KERAS_BACKEND=jax python benchmarks/gpu.py`, or torch.

    pip install '.[jax]' 'jax[cuda12]' optax && KERAS_BACKEND=jax python benchmarks/gpu.py

Prints the GPU, its driver, the versions, and the time of a micro-batch over the floor: four bare
additions `acc += g` and one stock update. All contenders take turns. On JAX, these are the programs
of `accelerators`, beside the bytes over the floor that were compiled for an H100. On PyTorch, they
are beside the waits that the fake device has counted, inside a window and at its end. Where it has
counted none inside, an error is raised if Python waits for this GPU.
"""

import argparse
import contextlib
import os
import subprocess

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from accelerators import tables
from micro_batch import describe
from shared import contenders
from shared.contenders import DEFAULT, FLOOR, STOCK
from shared.timing import smallest

K = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="turns of each contender")
    options = parser.parse_args()
    options.host = "keras3"
    print(describe_gpu())
    print(", ".join(" ".join(pair) for pair in describe(options, keras)["versions"].items()))
    host = {"jax": OnJAX, "torch": OnPyTorch}[keras.backend.backend()]()
    print(f"\n| case | contender | measured | {host.known_column} |")
    print("| --- | --- | ---: | ---: |")
    for case, steps in host.steps().items():
        known = host.known[case]
        windows = {name: window(host, step) for name, step in steps.items()}
        for run in windows.values():
            run()
        if not host.waits_inside(known):
            with host.no_waits():
                for i in range(1, K):
                    steps[DEFAULT](i)
            steps[DEFAULT](K)
        times = smallest(windows, options.rounds)
        floor = ((K - 1) * times[FLOOR] + times[STOCK]) / K
        for name, seconds in times.items():
            beside = tables.cell(host.beside(known[name])) if name in known else ""
            print(f"| {case} | {name} | {seconds / floor:.2f} | {beside} |", flush=True)


def describe_gpu():
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no GPU"
    return f"{result.stdout.strip()}, backend {keras.backend.backend()}"


def window(host, step):
    def run():
        for i in range(1, K + 1):
            results = step(i)
        host.wait(results)

    return run


class OnJAX:
    """A step is a function of the number of a micro-batch in its window, 1 to K."""

    known_column = "H100, compiled"

    def __init__(self):
        self.known = tables.load()["gpu"]["cases"]

    def beside(self, row):
        return row["over_floor"]

    def waits_inside(self, known):
        return known[DEFAULT]["waits"][0]

    def steps(self):
        from accelerators.programs import CASES

        return {c: {n: self._step(p) for n, p in make().items()} for c, make in CASES.items()}

    def _step(self, program):
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

    def wait(self, results):
        import jax

        jax.block_until_ready(results)

    def no_waits(self):
        import jax

        return jax.transfer_guard_device_to_host("disallow_explicit")


class OnPyTorch:
    known_column = "waits by the fake device"

    def __init__(self):
        self.known = tables.load()["torch"]["cases"]

    def beside(self, counts):
        return counts

    def waits_inside(self, known):
        return known[DEFAULT][0]

    def steps(self):
        from accelerators import waits

        made = {**waits.optimizers(), FLOOR: contenders.find("keras3")[FLOOR].optimizer}

        def step_of(make, optimizer):
            step = make(optimizer)
            return lambda i: step()

        return {
            case: {name: step_of(make, optimizer(K)) for name, optimizer in made.items()}
            for case, make in waits.cases(width=1024).items()
        }

    def wait(self, results):
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()

    @contextlib.contextmanager
    def no_waits(self):
        import torch

        if not torch.cuda.is_available():
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    main()
