"""The tables and the picture of the pages, from `results/*.json`: `python benchmarks/tables.py`.

Prints the tables that `IN_PAGES` names, and writes `results/micro_batch.md`, `accelerators.md` and
`micro_batch.png`. No Keras is needed. A test compares all of them with the pages.
"""

import json
from pathlib import Path

from shared.contenders import (
    BIG,
    CONDITIONAL,
    DECIDE,
    DEFAULT,
    FLOOR,
    IN_SLICES,
    MULTI_STEPS,
    OWN,
    SELECT,
    STOCK,
    WEIGHTED,
)

RESULTS = Path(__file__).resolve().parent / "results"


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def save(name, found):
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def table(first, columns, rows, line="---:"):
    """A table of {name: cells}; `first` is the head of the names."""
    lines = [f"| {first} | {' | '.join(columns)} |", "| --- |" + f" {line} |" * len(columns)]
    lines += [f"| {name} | {' | '.join(map(cell, cells))} |" for name, cells in rows.items()]
    return "\n".join(lines)


def cell(value):
    """A figure, or a pair of figures: inside a window, and at its end if that is another one."""
    if isinstance(value, list):
        ends = (f"{v:.1f}" if isinstance(v, float) else f"{v}" for v in (value[0], value[-1]))
        return " / ".join(dict.fromkeys(ends))
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else f"{value}"


def versions(found):
    return ", ".join(" ".join(pair) for pair in found["versions"].items())


def from_to(figures, form=".2f"):
    return f"{min(figures):{form}} to {max(figures):{form}}"


# -- the time of a micro-batch on a CPU, by `micro_batch.py` -----------------------------------

HOSTS = {
    "keras3_tensorflow": "Keras 3, TensorFlow",
    "keras3_tensorflow_xla": "Keras 3, TensorFlow, XLA",
    "keras3_jax": "Keras 3, JAX",
    "keras3_torch": "Keras 3, PyTorch",
    "tf_keras": "tf_keras",
    "tf_keras_2_15": "tf.keras 2.15",
    "keras2": "Keras 2.2.4",
}
SHORT, CONVOLUTIONS = "MLP, 3.2 M", "conv net, 1.2 M"


def of_host(host):
    """Return {network: {contender: time over the floor}}; None is an error."""
    found = {}
    for row in load(host)["results"]:
        found.setdefault(row["network"], {})[row["contender"]] = row["over_floor"]
    return found


def in_fit(host):
    """Return the networks that `fit` trains: all but the last one, the optimizer alone."""
    return dict(list(of_host(host).items())[:-1])


def default_gate(host):
    """Return the gate that a user gets there who doesn't choose one."""
    return SELECT if host in ("keras2", "keras3_torch") else CONDITIONAL


def short_table():
    """Of the network SHORT, without TensorFlow 2.15, whose figures are those of tf_keras."""
    columns = SELECT, CONDITIONAL, IN_SLICES, OWN, STOCK
    rows = {label: list(map(of_host(host)[SHORT].get, columns)) for host, label in HOSTS.items()}
    del rows[HOSTS["tf_keras_2_15"]]
    return table("Keras", columns, rows)


def ranges_table():
    """The default in `fit` on each Keras: the least and the most."""
    rows = {}
    for host in HOSTS:
        for network, times in in_fit(host).items():
            time = times[default_gate(host)]
            ratios = time, time / times[STOCK], time / times[BIG]
            rows.setdefault(network, []).append(ratios)
    columns = "over the floor", "over a step of stock Adam", "a window over the big batch"
    rows = {network: map(from_to, zip(*ratios)) for network, ratios in rows.items()}
    return table("network", columns, rows)


def long_page():
    lines = []
    for host, label in HOSTS.items():
        about, networks = load(host), of_host(host)
        names = dict.fromkeys(name for times in networks.values() for name in times)
        rows = {name: [times.get(name, "") for times in networks.values()] for name in names}
        rows = {name: ["error" if t is None else t for t in times] for name, times in rows.items()}
        measured = f"{about['machine']}; {versions(about)}; at least {about['rounds']} rounds."
        lines += [f"## {label}", "", measured, "", table("contender", networks, rows), ""]
    return "\n".join(lines)


def draw(path):
    """Draw three candidates as bars, for SHORT: a group for each Keras that has Keras's own.

    The picture is as wide as a page, so that its letters have the size of the page's letters.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    of_hosts = {host: of_host(host)[SHORT] for host in HOSTS}
    of_hosts = {host: times for host, times in of_hosts.items() if OWN in times}
    defaults = [times[default_gate(host)] for host, times in of_hosts.items()]
    bars = {
        ("the default", "tab:blue"): defaults,
        (IN_SLICES, "lightskyblue"): [times[IN_SLICES] for times in of_hosts.values()],
        (OWN, "tab:orange"): [times[OWN] for times in of_hosts.values()],
    }
    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for place, ((name, color), times) in enumerate(bars.items()):
        at = [x + 0.27 * (place - 1) for x in range(len(times))]
        drawn = axis.bar(at, times, 0.25, color=color, label=name)
        axis.bar_label(drawn, [f"{time:.2f}" for time in times])
    axis.axhline(1, color="0.4", linewidth=1, linestyle="--", label="the floor")
    axis.set_xticks(range(len(of_hosts)), [HOSTS[host] for host in of_hosts])
    axis.set(title=f"Time of a micro-batch: {SHORT}, accum_iters=8", ylabel="over the floor")
    axis.legend()
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


# -- a GPU, by `gpu.py` ------------------------------------------------------------------------

BACKENDS = {"jax": "JAX", "torch": "PyTorch"}
COLUMNS = STOCK, BIG, OWN, DEFAULT, CONDITIONAL, WEIGHTED, IN_SLICES
LABELS = {DEFAULT: "the default", FLOOR: "additions"}
LABELS_IN_FIT = {DEFAULT: '`reduction="mean"`', WEIGHTED: "with weights"}
FULL = "full float32"
SETTINGS = "float32 as it comes", FULL, "mixed_bfloat16", "mixed_float16"
OURS, CONTROL = "accumulated", "control"


def newest_gpu(part="fit"):
    """Return the contents of the newest file that has results of a part."""
    files = [load(path.stem) for path in RESULTS.glob("gpu_*.json")]
    having = [found for found in files if any(found.get(part, {}).values())]
    return max(having, key=lambda found: found["date"])


def contenders_of(backend):
    """Return the contenders in `fit`: PyTorch has no gates, because Python decides there."""
    return [name for name in COLUMNS if not (backend == "torch" and name == CONDITIONAL)]


def labels(names, of=LABELS):
    return [of.get(name, name) for name in names]


def by_row(rows, names):
    """Return {row: cells} of {row: {name: figure}}, without rows that weren't measured."""
    return {row: [of.get(name) for name in names] for row, of in rows.items() if of}


def fit_table(found, backend):
    """Milliseconds of a micro-batch in `fit`."""
    names = contenders_of(backend)
    rows = by_row(found["fit"][backend], names)
    return table(BACKENDS[backend], labels(names, LABELS_IN_FIT), rows)


def alone_table(found, backend):
    """The optimizer alone: on JAX over the floor, on PyTorch in milliseconds."""
    cases = found["alone"][backend]
    names = DEFAULT, SELECT, CONDITIONAL, DECIDE, STOCK, OWN, MULTI_STEPS, IN_SLICES
    if backend == "torch":
        names = dict.fromkeys(name for times in cases.values() for name in times)
    return table(BACKENDS[backend], labels(names), by_row(cases, names))


def distances_table(found):
    """How far weights end from the big batch's. In brackets, the big batch in another order."""
    rows = {}
    for backend, settings in found["distances"].items():
        for setting, networks in settings.items():
            ends = {n: f"{of[OURS]:.1e} ({of[CONTROL]:.0e})" for n, of in (networks or {}).items()}
            rows[f"{BACKENDS[backend]}, {setting}"] = ends
    names = dict.fromkeys(name for ends in rows.values() for name in ends)
    return table("weights after 3 updates", names, by_row(rows, names))


def memory_table(found):
    """The peak in MB, for the transformer; nothing without a GPU."""
    memory = {BACKENDS[b]: peaks for b, peaks in found["memory"].items() if any(peaks.values())}
    names = [name for name in COLUMNS if any(peaks.get(name) for peaks in memory.values())]
    return table("peak, MB", labels(names, LABELS_IN_FIT), by_row(memory, names)) * bool(memory)


def out_of_memory_table(found):
    """How trainings end in 3% of the memory: the error, or the distance of the weights."""
    rows = {BACKENDS[backend]: ends for backend, ends in found["out_of_memory"].items()}
    rows = {of: {name: _end(end) for name, end in ends.items()} for of, ends in rows.items()}
    names = dict.fromkeys(name for ends in rows.values() for name in ends)
    return table("with 3% of the memory", names, by_row(rows, names))


def _end(end):
    return f"{end:.0e}".replace("0e+00", "0") if isinstance(end, float) else end.replace("|", "/")


def gpu_tables(found):
    """Return all tables, under the card, the date and the versions."""
    yield f"{found['card']}, {found['date']}: {versions(found)}"
    yield from (fit_table(found, backend) for backend in found["fit"])
    yield from (alone_table(found, backend) for backend, of in found.get("alone", {}).items() if of)
    yield from filter(None, (distances_table(found), memory_table(found)))
    yield out_of_memory_table(found)


# -- ratios of times, on a CPU and a GPU -------------------------------------------------------

AN_OPTIMIZER = "an accumulating optimizer"
RATIOS = {
    f"{AN_OPTIMIZER}, over stock Adam": (AN_OPTIMIZER, STOCK),
    f"{AN_OPTIMIZER}, over Keras's own accumulation": (AN_OPTIMIZER, OWN),
    "`MicroBatches`, over Keras's own accumulation": (IN_SLICES, OWN),
    "a window, over one step of the big batch": (AN_OPTIMIZER, BIG),
    '`gate="conditional"`, over the default gate, both with `reduction="mean"`': (
        *(CONDITIONAL, DEFAULT),
    ),
    'weighing micro-batches, over `reduction="mean"`': (WEIGHTED, DEFAULT),
}


def times_in_fit():
    """Return {where: [{contender: time} for each network]}."""
    found = {"CPU": []}
    for host in HOSTS:
        for network, times in in_fit(host).items():
            if network == CONVOLUTIONS:  # `MicroBatches` can be slow there: the page says where
                times.pop(IN_SLICES, None)
            found["CPU"].append({**times, AN_OPTIMIZER: times[default_gate(host)]})
    for backend, networks in newest_gpu()["fit"].items():  # weights are the default of `fit`
        of_gpu = [{**times, AN_OPTIMIZER: times[WEIGHTED]} for times in networks.values()]
        found[f"H100, {BACKENDS[backend]}"] = of_gpu
    return found


def ratios_of(pair, found):
    both = [[times.get(name) for name in pair] for times in found]
    return [over / base for over, base in both if over and base]


def ratios_table():
    found = times_in_fit()
    rows = {name: [ratios_of(pair, of) for of in found.values()] for name, pair in RATIOS.items()}
    rows = {name: [from_to(r) if r else "" for r in ratios] for name, ratios in rows.items()}
    return table("time", found, rows)


def range_of_steps():
    """Return what a micro-batch costs over a step of stock Adam, wherever it was measured."""
    everywhere = sum(times_in_fit().values(), [])
    ratios = ratios_of((AN_OPTIMIZER, STOCK), everywhere)
    return f"[{from_to(ratios)} times](docs/cost.md)"


# -- compiled programs, by `accelerators` ------------------------------------------------------

PLATFORMS = {"gpu": "H100", "tpu": "TPU v5e"}
LARGE, MANY = "optimizer alone, 4 x 3 M", "optimizer alone, 300 x 64"
FIT = "train step of `fit`, MLP"
DATA_PARALLEL, MODEL_PARALLEL, MIRRORED = "DataParallel", "ModelParallel", "MirroredStrategy"
WHERE = {**PLATFORMS, "cpu": "JAX on CPUs"}
FIGURES = {
    "conditionals": "conditionals",
    "loops": "loops",
    "waits": "waits of the host",
    "kernels": "kernels",
    "copies": "copies",
    "temporary": "temporary memory",
    "words": "words",
    "over_floor": "over the floor",
}


def compiled(platform):
    return load(f"accelerators_{platform}")


def compiled_table():
    """A row for each contender, the optimizer alone first."""
    gpu, tpu = (compiled(platform)["cases"] for platform in PLATFORMS)
    keys = "conditionals", "waits", "copies", "temporary", "words", "over_floor"
    rows = {}
    for name in {**gpu[FIT], **gpu[LARGE]}:
        if name not in (SELECT, FLOOR):  # the default is "select" here
            others = [case.get(name, {}) for case in (gpu[FIT], tpu[LARGE], tpu[FIT])]
            rows[name] = [gpu[LARGE].get(name, {}).get(key) for key in keys]
            rows[name] += [row.get("over_floor") for row in others]
    columns = [*(FIGURES[key] for key in keys), "`fit`", "TPU", "`fit` on a TPU"]
    return table("contender", columns, rows)


def waits_table():
    """How often PyTorch waits for a GPU."""
    cases = compiled("torch")["cases"]
    names = next(iter(cases.values()))
    return table("contender", cases, {name: [c[name] for c in cases.values()] for name in names})


def reductions_table():
    """How often an update reduces gradients, and bytes of a parameter."""
    found = compiled("collectives")
    spread, split = found["cases"][DATA_PARALLEL], found["cases"][MODEL_PARALLEL]["gpu"]
    replicas = compiled("replicas")["cases"][MIRRORED]
    names = {
        STOCK: "stock Adam, big batch",
        IN_SLICES: IN_SLICES,
        DEFAULT: "AdamAccumulate",
        OWN: OWN,
    }
    rows = {}
    for name, label in names.items():
        rows[label] = [spread[platform][name]["all-reduce"] for platform in WHERE]
        rows[label] += [replicas[name].get("all-reduce", "error"), spread["gpu"][name]["bytes"]]
        rows[label].append(split[name]["bytes"])
    moved = [f"bytes, {case}" for case in (DATA_PARALLEL, MODEL_PARALLEL)]
    columns = [*WHERE.values(), "TensorFlow on CPUs", *moved]
    return table(f"reductions in an update of {found['k']} micro-batches", columns, rows)


def accelerators_page():
    lines = []
    for platform, label in PLATFORMS.items():
        found = compiled(platform)
        lines += [f"## {label}", "", f"Compiled by {versions(found)}, and not run.", ""]
        for case, rows in found["cases"].items():
            cells = table("contender", FIGURES.values(), by_row(rows, FIGURES))
            lines += [f"### {case[0].upper()}{case[1:]}", "", cells, ""]
    torch, collectives, replicas = map(compiled, ("torch", "collectives", "replicas"))
    lines += ["## PyTorch on a GPU that isn't there", "", f"By {versions(torch)}.", ""]
    lines += [waits_table(), "", "## Reductions in an update on several devices", ""]
    lines += [f"By {versions(collectives)}; {versions(replicas)}.", "", reductions_table(), ""]
    return "\n".join(lines)


# -- other packages, by `everybody` ------------------------------------------------------------

EVERYBODY = {
    "schedule": "schedule counts updates",
    "clipping": "clipping by global norm",
    "decay": "decoupled weight decay",
    "tokens": "unequal numbers of tokens",
    "last": "last window of 2 in place of 4",
    "continued": "stopped in a window, continued",
    "average": "average of weights",
    "missing": "a gradient missing in some micro-batches",
    "infinite": "an infinite gradient, left out",
    "normalization": "batch normalization",
    "constraint": "max_norm constraint",
    "replicas": "MirroredStrategy, 2 replicas",
    "callbacks": "calls at the end of a step, in 3 updates",
}
GROUPS = "keras3", "optax", "torch", "tf_keras_2_15", "keras2"


def everybody_table():
    """The table of how far everybody's accumulation ends from the big batch, and its versions."""
    groups = [load(f"everybody_{group}") for group in GROUPS]
    columns = {name: of for found in groups for name, of in found["columns"].items()}
    rows = {case: [of[key] for of in columns.values()] for key, case in EVERYBODY.items()}
    made_by = ", ".join(map(versions, groups))
    return "\n".join([table("case", columns, rows, "---"), "", made_by])


def in_pages():
    """Return {page: the tables that it shows}."""
    gpu, alone = newest_gpu(), newest_gpu("alone")
    return {
        "README.md": [range_of_steps()],
        "docs/cost.md": [ratios_table()],
        "docs/exactness.md": [distances_table(gpu)],
        "benchmarks/README.md": [
            *(short_table(), ranges_table()),
            *(fit_table(gpu, backend) for backend in BACKENDS),
            *(memory_table(gpu), *(alone_table(alone, backend) for backend in BACKENDS)),
            *(compiled_table(), waits_table(), reductions_table(), everybody_table()),
        ],
        "benchmarks/results/micro_batch.md": [long_page()],
        "benchmarks/results/accelerators.md": [accelerators_page()],
    }


if __name__ == "__main__":
    (RESULTS / "micro_batch.md").write_text(long_page(), "utf-8")
    (RESULTS / "accelerators.md").write_text(accelerators_page(), "utf-8")
    draw(RESULTS / "micro_batch.png")
    for page, shown in in_pages().items():
        if "results" not in page:
            print(f"{page}:", *shown, sep="\n\n", end="\n\n")
