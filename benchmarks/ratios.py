"""Times in `fit` over each other, on a CPU and a GPU: `python benchmarks/ratios.py`.

Prints the first table of docs/cost.md and the range in README.md, from `results/*.json`.
"""

import report
from on_gpu import tables
from shared.contenders import BIG, CONDITIONAL, DEFAULT, IN_SLICES, OWN, STOCK, WEIGHTED

OURS = "an accumulating optimizer"
CONVOLUTIONS = "conv net, 1.2 M"  # `MicroBatches` can be slow there: the page says where
ROWS = {
    f"{OURS}, over stock Adam": (OURS, STOCK),
    f"{OURS}, over Keras's own accumulation": (OURS, OWN),
    "`MicroBatches`, over Keras's own accumulation": (IN_SLICES, OWN),
    "a window, over one step of the big batch": (OURS, BIG),
    '`gate="conditional"`, over the default gate, both with `reduction="mean"`': (
        CONDITIONAL,
        DEFAULT,
    ),
    'with weights, over `reduction="mean"`': (WEIGHTED, DEFAULT),
}


def load():
    """Return {where: [{contender: time} for each network]}."""
    gpu = tables.load()
    return {
        "CPU": [times for host, about in report.load().items() for times in on_cpu(host, about)],
        "H100, JAX": [on_gpu(times) for times in gpu["fit"]["jax"].values()],
        "H100, PyTorch": [on_gpu(times) for times in gpu["fit"]["torch"].values()],
    }


def on_cpu(host, about):
    for network in report.networks({host: about})[:-1]:  # the last one is the optimizer alone
        times = report.of(about, network)
        if network == CONVOLUTIONS:
            times.pop(IN_SLICES, None)
        del times[CONDITIONAL]
        yield {OURS: report.of(about, network)[report.default(host)], **times}


def on_gpu(times):
    return {OURS: times[WEIGHTED], **times}  # weights are the default of `fit`


def ranges(over, base, found):
    """Return the least and the most of a ratio, None if nothing was measured."""
    ratios = [times[over] / times[base] for times in found if times.get(over) and times.get(base)]
    return (min(ratios), max(ratios)) if ratios else None


def table(found):
    lines = [f"| time | {' | '.join(found)} |", "| --- |" + " ---: |" * len(found)]
    for name, pair in ROWS.items():
        cells = [ranges(*pair, times) for times in found.values()]
        cells = ["{:.2f} to {:.2f}".format(*cell) if cell else "" for cell in cells]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def range_of_steps(found):
    """Return what a micro-batch costs over a step of stock Adam, wherever it was measured."""
    everywhere = [times for of_place in found.values() for times in of_place]
    return "{:.1f} to {:.1f} times".format(*ranges(OURS, STOCK, everywhere))


if __name__ == "__main__":
    print(table(load()), range_of_steps(load()), sep="\n\n")
