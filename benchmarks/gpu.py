"""What accumulation costs on a GPU: `KERAS_BACKEND=jax python benchmarks/gpu.py`, or torch.

    pip install '.[jax]' 'jax[cuda12]' && KERAS_BACKEND=jax python benchmarks/gpu.py

Prints the GPU, its driver and the versions. Then prints the time of a micro-batch, divided by that
of stock Adam and of Keras's own accumulation, for networks of 3 M and 300 M parameters and a small
transformer. The figures are medians of rounds in which all contenders take turns. The script also
checks that Python never waits for the GPU inside a window, and raises an error if it does.
"""

import argparse
import contextlib
import os
import subprocess

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from micro_batch import describe, fits
from shared import alone, contenders, networks
from shared.contenders import CONDITIONAL, OWN, PYTHON, SELECT, STOCK
from shared.timing import medians

WINDOW = 8
NONE = "no GPU"
NETWORKS = {
    "MLP, 3.2 M": networks.mlp,
    "MLP, 300 M": networks.large_mlp,
    "transformer, 9 M": networks.transformer,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="turns of each contender")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    options = parser.parse_args()
    options.host = "keras3"
    print(describe_gpu())
    print(", ".join(" ".join(pair) for pair in describe(options, keras)["versions"].items()))
    look_for_syncs()

    found = contenders.find("keras3")
    names = [name for name in (SELECT, CONDITIONAL, PYTHON, OWN, STOCK) if name in found]
    print("\n| network | contender | over stock Adam | over Keras's own |")
    print("| --- | --- | ---: | ---: |")
    for network in options.networks:
        keras.backend.clear_session()
        steps = {name: fits(keras, NETWORKS[network], found[name], WINDOW) for name in names}
        for step in steps.values():
            step()
        median = medians(steps, options.rounds)
        for name in names:
            cells = f"{median[name] / median[STOCK]:.2f} | {median[name] / median[OWN]:.2f}"
            print(f"| {network} | {name} | {cells} |", flush=True)


def describe_gpu():
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return NONE
    return f"{result.stdout.strip()}, backend {keras.backend.backend()}"


def look_for_syncs():
    """Apply all but the last micro-batch of a window, and raise an error if Python waits."""
    for gate in (SELECT, CONDITIONAL):
        optimizer = contenders.find("keras3")[gate].optimizer(WINDOW)
        step = alone.make("keras3", keras, optimizer, [(1000, 1000)] * 4).step
        for _ in range(WINDOW):
            step()
        with no_syncs():
            for _ in range(WINDOW - 1):
                step()
        if describe_gpu() != NONE:
            print(f"gate={gate!r}: Python never waited for the GPU inside a window")


@contextlib.contextmanager
def no_syncs():
    """Raise an error where Python waits for a value from the GPU."""
    if keras.backend.backend() == "jax":
        import jax

        with jax.transfer_guard_device_to_host("disallow_explicit"):
            yield
        return
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
