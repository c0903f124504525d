"""What a micro-batch compiles to on an H100 and a TPU v5e, without either.

In the folder `benchmarks`: `python -m accelerators gpu` or `tpu` compiles all programs of Keras 3
on JAX, and `torch` counts where PyTorch waits for a GPU. `collectives` and `replicas` count how
often several devices reduce gradients, on JAX and on TensorFlow. Each writes its figures to
`results/accelerators_*.json`. `nox -f benchmarks/noxfile.py -s accelerators` does all of this.
"""

import importlib
import sys
from importlib import metadata

import tables

from . import K

PLUGINS = {"gpu": ("jax-cuda12-plugin", "jax-cuda12-pjrt"), "tpu": ("libtpu",)}
# What is measured: its module, and the packages whose versions are kept.
PARTS = {
    "gpu": ("compiled", ("jax", *PLUGINS["gpu"], "keras", "optax")),
    "tpu": ("compiled", ("jax", *PLUGINS["tpu"], "keras", "optax")),
    "torch": ("waits", ("torch", "keras")),
    "collectives": ("collectives", ("jax", *PLUGINS["gpu"], "keras", "optax", *PLUGINS["tpu"])),
    "replicas": ("replicas", ("tensorflow", "keras")),
}


def main():
    (what,) = sys.argv[1:]
    name, packages = PARTS[what]
    cases = importlib.import_module(f"accelerators.{name}").measure(what)
    versions = {package: metadata.version(package) for package in packages}
    tables.save(f"accelerators_{what}", {"versions": versions, "k": K, "cases": cases})


if __name__ == "__main__":
    main()
