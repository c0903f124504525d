"""The tables of README.md and docs/exactness.md, from `results/gpu_*.json`. No Keras here."""

import json
from pathlib import Path

from accelerators.tables import FIT, LARGE, MANY, table
from shared.contenders import (
    BIG,
    CONDITIONAL,
    DECIDE,
    DEFAULT,
    FLOOR,
    IN_SLICES,
    OWN,
    SELECT,
    STOCK,
    WEIGHTED,
)

RESULTS = Path(__file__).resolve().parents[1] / "results"
BACKENDS = {"jax": "JAX", "torch": "PyTorch"}
NETWORKS = "MLP, 54 M", "transformer, 23 M, 99 variables", "embedding, 26 M", "convolutions"
COLUMNS = STOCK, BIG, OWN, DEFAULT, CONDITIONAL, WEIGHTED, IN_SLICES
LABELS = {DEFAULT: "the default"}
LABELS_IN_FIT = {DEFAULT: '`reduction="mean"`', WEIGHTED: "with weights"}
AS_IT_COMES, FULL = "float32 as it comes", "full float32"
SETTINGS = AS_IT_COMES, FULL, "mixed_bfloat16", "mixed_float16"
OURS, CONTROL = "accumulated", "control"


def path(card):
    return RESULTS / f"gpu_{'_'.join(card.lower().split())}.json"


def load(part="fit"):
    """Return the contents of the newest file that has results of a part."""
    files = [json.loads(path.read_text("utf-8")) for path in RESULTS.glob("gpu_*.json")]
    having = [found for found in files if any(found.get(part, {}).values())]
    return max(having, key=lambda found: found["date"])


def contenders_of(backend):
    """Return the contenders in `fit`: PyTorch has no gates, because Python decides there."""
    return [name for name in COLUMNS if not (backend == "torch" and name == CONDITIONAL)]


def labels(names, of=LABELS):
    return [of.get(name, name) for name in names]


def fit_table(found, backend):
    """Milliseconds of a micro-batch in `fit`."""
    names = contenders_of(backend)
    times = found["fit"][backend]
    rows = {
        network: [times[network].get(name) for name in names]
        for network in NETWORKS
        if times.get(network)
    }
    return table(labels(names, LABELS_IN_FIT), rows, BACKENDS[backend])


def alone_table(found):
    """The optimizer alone and the train step of `fit` on JAX, over the floor."""
    names = DEFAULT, SELECT, CONDITIONAL, DECIDE, STOCK, OWN, "optax.MultiSteps", IN_SLICES
    cases = found["alone"]["jax"]
    rows = {c: [cases[c].get(n) for n in names] for c in (LARGE, MANY, FIT) if c in cases}
    return table(labels(names), rows, "JAX")


def torch_table(found):
    """The optimizer alone on PyTorch, in milliseconds, for a transformer's variables."""
    cases = found["alone"]["torch"]
    names = dict.fromkeys(name for times in cases.values() for name in times)
    rows = {case: [times.get(name) for name in names] for case, times in cases.items()}
    return table([{FLOOR: "additions"}.get(n, LABELS.get(n, n)) for n in names], rows, "PyTorch")


def distances_table(found):
    """How far weights end from the big batch's. In brackets, the big batch in another order."""
    measured = {
        f"{BACKENDS[backend]}, {setting}": of_networks
        for backend, settings in found["distances"].items()
        for setting, of_networks in settings.items()
        if of_networks
    }
    networks = dict.fromkeys(name for of_networks in measured.values() for name in of_networks)
    rows = {n: [_distance(each.get(name)) for name in networks] for n, each in measured.items()}
    return table(networks, rows, "weights after 3 updates")


def _distance(found):
    if not found:
        return ""
    return f"{found[OURS]:.1e} ({found[CONTROL]:.0e})"


def memory_table(found):
    """The peak in MB, for the transformer."""
    memory = {b: peaks for b, peaks in found["memory"].items() if any(peaks.values())}
    names = [name for name in COLUMNS if any(peaks.get(name) for peaks in memory.values())]
    rows = {BACKENDS[b]: [peaks.get(name) for name in names] for b, peaks in memory.items()}
    return table(labels(names, LABELS_IN_FIT), rows, "peak, MB")


def out_of_memory_table(found):
    ends = found["out_of_memory"]
    names = dict.fromkeys(name for of_backend in ends.values() for name in of_backend)
    rows = {BACKENDS[b]: [_end(e.get(name)) for name in names] for b, e in ends.items()}
    return table(names, rows, "with 3% of the memory")


def _end(end):
    if isinstance(end, float):
        return "0" if end == 0 else f"{end:.0e}"
    return end and end.replace("|", "/")


def all_of(found):
    """Yield all tables, under the card, the date and the versions."""
    versions = ", ".join(" ".join(pair) for pair in found["versions"].items())
    yield f"{found['card']}, {found['date']}: {versions}"
    for backend in found["fit"]:
        yield fit_table(found, backend)
    if found.get("alone", {}).get("jax"):
        yield alone_table(found)
    if found.get("alone", {}).get("torch"):
        yield torch_table(found)
    yield distances_table(found)
    if any(peak for peaks in found["memory"].values() for peak in peaks.values()):
        yield memory_table(found)
    if any(found["out_of_memory"].values()):
        yield out_of_memory_table(found)
