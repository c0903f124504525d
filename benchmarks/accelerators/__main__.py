"""What a micro-batch compiles to on an H100 and a TPU v5e, without either.

In the folder `benchmarks`: `python -m accelerators gpu` or `tpu` compiles all programs of Keras 3
on JAX, and `torch` counts where PyTorch waits for a GPU. `collectives` and `replicas` count how
often several devices reduce gradients, on JAX and on TensorFlow. Each writes its figures to
`results/accelerators_*.json`. `tables` prints the tables of README.md, and
writes `results/accelerators.md`. `nox -f benchmarks/noxfile.py -s accelerators` does all of this.
"""

import importlib
import sys

OTHERS = {"torch": "waits", "collectives": "collectives", "replicas": "replicas"}


def main():
    (what,) = sys.argv[1:]
    if what == "tables":
        from . import tables

        tables.write()
    elif what in OTHERS:
        importlib.import_module(f".{OTHERS[what]}", __package__).measure()
    else:
        from . import measure

        measure.measure(what)


if __name__ == "__main__":
    main()
