"""The tables of README.md and `results/accelerators.md`, from JSON files."""

import json
from pathlib import Path

from shared.contenders import DEFAULT, FLOOR, IN_SLICES, SELECT, STOCK

RESULTS = Path(__file__).resolve().parent.parent / "results"
PLATFORMS = {"gpu": "H100", "tpu": "TPU v5e"}
LARGE, MANY = "optimizer alone, 4 x 3 M", "optimizer alone, 300 x 64"
FIT = "train step of `fit`, MLP"
DATA_PARALLEL, MODEL_PARALLEL, MIRRORED = "DataParallel", "ModelParallel", "MirroredStrategy"
WHERE = {**PLATFORMS, "cpu": "JAX on CPUs"}
COLUMNS = {
    "conditionals": "conditionals",
    "loops": "loops",
    "waits": "waits of the host",
    "kernels": "kernels",
    "copies": "copies",
    "temporary": "temporary memory",
    "words": "words",
    "over_floor": "over the floor",
}


def path(platform):
    return RESULTS / f"accelerators_{platform}.json"


def load():
    """Return {platform: the contents of its JSON file}."""
    names = *PLATFORMS, "torch", "collectives", "replicas"
    return {name: json.loads(path(name).read_text("utf-8")) for name in names}


def cell(value):
    """A figure, or a pair of figures: inside a window, and at its end if that is another one."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return f"{value:.2f}" if isinstance(value, float) else f"{value}"
    inside, at_end = (f"{v:.1f}" if isinstance(v, float) else f"{v}" for v in (value[0], value[-1]))
    return inside if inside == at_end else f"{inside} / {at_end}"


def table(columns, rows, first="contender"):
    """A table of {name: cells}."""
    lines = [f"| {first} | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    lines += [f"| {name} | {' | '.join(map(cell, cells))} |" for name, cells in rows.items()]
    return "\n".join(lines)


def short_table(found):
    """For benchmarks/README.md: a row for each contender, the optimizer alone first."""
    gpu, tpu = (found[platform]["cases"] for platform in PLATFORMS)
    keys = "conditionals", "waits", "copies", "temporary", "words", "over_floor"
    columns = [*(COLUMNS[key] for key in keys), "`fit`", "TPU", "`fit` on a TPU"]
    rows = {}
    for name in gpu[FIT] | gpu[LARGE]:
        if name in (SELECT, FLOOR):  # the default is "select" here
            continue
        others = [case.get(name, {}) for case in (gpu[FIT], tpu[LARGE], tpu[FIT])]
        rows[name] = [gpu[LARGE].get(name, {}).get(key) for key in keys]
        rows[name] += [row.get("over_floor") for row in others]
    return table(columns, rows)


def torch_table(found):
    cases = found["torch"]["cases"]
    names = list(next(iter(cases.values())))
    return table(cases, {name: [case[name] for case in cases.values()] for name in names})


def reductions_table(found):
    """How often an update reduces gradients, and bytes of a parameter."""
    on_jax = found["collectives"]["cases"]
    spread, split = on_jax[DATA_PARALLEL], on_jax[MODEL_PARALLEL]["gpu"]
    replicas = found["replicas"]["cases"][MIRRORED]
    labels = {STOCK: "stock Adam, big batch", DEFAULT: "AdamAccumulate"}
    rows = {}
    for name in (STOCK, IN_SLICES, *(name for name in replicas if name not in (STOCK, IN_SLICES))):
        cells = [spread[platform][name]["all-reduce"] for platform in WHERE]
        cells += [replicas[name].get("all-reduce", "error"), spread["gpu"][name]["bytes"]]
        rows[labels.get(name, name)] = [*cells, split[name]["bytes"]]
    moved = [f"bytes, {case}" for case in (DATA_PARALLEL, MODEL_PARALLEL)]
    columns = [*WHERE.values(), "TensorFlow on CPUs", *moved]
    head = f"reductions in an update of {found['collectives']['k']} micro-batches"
    return table(columns, rows, head)


def versions(found, platform):
    return ", ".join(" ".join(pair) for pair in found[platform]["versions"].items())


def long_page(found):
    lines = []
    for platform, what in PLATFORMS.items():
        lines += [f"## {what}", "", f"Compiled by {versions(found, platform)}, and not run.", ""]
        for case, rows in found[platform]["cases"].items():
            cells = {name: [row.get(key) for key in COLUMNS] for name, row in rows.items()}
            lines += [f"### {case[0].upper()}{case[1:]}", "", table(COLUMNS.values(), cells), ""]
    lines += ["## PyTorch on a GPU that isn't there", "", f"By {versions(found, 'torch')}.", ""]
    lines += [torch_table(found), "", "## Reductions in an update on several devices", ""]
    made = [versions(found, name) for name in ("collectives", "replicas")]
    lines += [f"By {'; '.join(made)}.", "", reductions_table(found), ""]
    return "\n".join(lines)


def write():
    found = load()
    (RESULTS / "accelerators.md").write_text(long_page(found), "utf-8")
    print(short_table(found), *(versions(found, name) for name in found), sep="\n\n")
    print("\n" + torch_table(found), reductions_table(found), sep="\n\n")
