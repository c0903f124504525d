"""The time of a micro-batch in `fit`: all contenders take turns in one process."""

import keras
from micro_batch import fits, runs
from shared import contenders
from shared.contenders import DEFAULT, IN_SLICES, WEIGHTED
from shared.timing import smallest

from . import networks, tables


def find():
    """Return {name: Contender}, in the order of the tables."""
    known = {
        **contenders.find("keras3"),
        DEFAULT: contenders.default("keras3"),
        WEIGHTED: contenders.default("keras3", reduction="weighted"),
        IN_SLICES: contenders.in_slices("keras3", networks.MICRO_BATCH),
    }
    return {name: known[name] for name in tables.contenders_of(keras.backend.backend())}


def measure(options, network):
    """Return {contender: milliseconds of a micro-batch}, None for one that fails."""
    count = networks.WINDOW * (2 if options.small else 6)
    steps = {
        name: fits(keras, networks.of(options)[network], c, networks.WINDOW, micro_batches=count)
        for name, c in find().items()
    }
    working = {name: step for name, step in steps.items() if runs(name, step)}
    times = smallest(working, options.rounds) if options.rounds else {}
    return {name: round(1000 * times[name] / count, 3) if name in times else None for name in steps}
