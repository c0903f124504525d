"""What a micro-batch compiles to on an H100 and a TPU v5e, without either.

In the folder `benchmarks`: `python -m accelerators gpu` or `tpu` compiles all programs of Keras 3
on JAX, and `torch` counts where PyTorch waits for a GPU. Each writes its figures to
`results/accelerators_*.json`. `tables` prints the tables of README.md, and writes
`results/accelerators.md`. `nox -f benchmarks/noxfile.py -s accelerators` does all of this.
"""

import sys


def main():
    (what,) = sys.argv[1:]
    if what == "tables":
        from . import tables

        tables.write()
    elif what == "torch":
        from . import waits

        waits.measure()
    else:
        from . import measure

        measure.measure(what)


if __name__ == "__main__":
    main()
