"""Make the tables and the plot from `benchmarks/results/*.json`: `python benchmarks/report.py`.

Writes `results/micro_batch.md`, which has every figure, and `results/micro_batch.png`, and prints
the table that is part of docs/cost.md.
"""

import json
from pathlib import Path

from shared.contenders import BIG, FLOOR, LOOP, OURS, OWN, STOCK

RESULTS = Path(__file__).resolve().parent / "results"
HOSTS = {
    "keras3_tensorflow": "Keras 3, TensorFlow",
    "keras3_tensorflow_xla": "Keras 3, TensorFlow, XLA",
    "keras3_jax": "Keras 3, JAX",
    "keras3_torch": "Keras 3, PyTorch",
    "tf_keras": "tf_keras",
    "tf_keras_2_15": "tf.keras 2.15",
    "keras2": "Keras 2.2.4",
}
COLUMNS = [*OURS, OWN, LOOP, STOCK, BIG]


def load():
    """Return {host: the contents of its JSON file}."""
    paths = {host: RESULTS / f"{host}.json" for host in HOSTS}
    return {h: json.loads(p.read_text("utf-8")) for h, p in paths.items() if p.exists()}


def networks(found):
    return list(dict.fromkeys(r["network"] for host in found.values() for r in host["results"]))


def of(about, network, k):
    """Return {contender: result} for a network and a window's length."""
    return {r["contender"]: r for r in about["results"] if (r["network"], r["k"]) == (network, k)}


def cell(results, name, over="over_floor"):
    if name not in results:
        return ""
    ratio = results[name][over]
    return "error" if ratio is None else f"{ratio:.2f}"


def short_table(found, k=8):
    """The time of a micro-batch divided by the floor, for windows of k.

    Without the convolutional network, whose time is in the convolutions, without peers, and without
    TensorFlow 2.15, whose figures are those of tf_keras. All are in the long table.
    """
    lines = [
        f"| host | network | {' | '.join(COLUMNS)} |",
        f"| --- | --- |{' ---: |' * len(COLUMNS)}",
    ]
    for host, about in found.items():
        if host == "tf_keras_2_15":
            continue
        for network in networks({host: about}):
            if not network.startswith("conv net"):
                results = of(about, network, k)
                cells = " | ".join(cell(results, column) for column in COLUMNS)
                lines.append(f"| {HOSTS[host]} | {network} | {cells} |")
    return "\n".join(lines)


def long_table(found):
    lines = []
    for host, about in found.items():
        versions = ", ".join(" ".join(pair) for pair in about["versions"].items())
        lines += [f"## {HOSTS[host]}", ""]
        lines += [f"{about['machine']}; {versions}; {about['rounds']} rounds.", ""]
        ks = sorted({r["k"] for r in about["results"]})
        columns = [f"k={k}, over {over}" for over in ("stock", "floor") for k in ks]
        lines.append(f"| network | contender | {' | '.join(columns)} |")
        lines.append(f"| --- | --- |{' ---: |' * len(columns)}")
        for network in networks({host: about}):
            by_k = [of(about, network, k) for k in ks]
            for name in by_k[0]:
                cells = [cell(r, name, over) for over in ("over_stock", "over_floor") for r in by_k]
                lines.append(f"| {network} | {name} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def draw(found, k=8):
    """Draw a panel for each network, with a row for each host and a mark for each contender.

    The picture is as wide as a page, so that its letters have the size of the page's letters.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    figure, panels = plt.subplots(2, 2, figsize=(8, 7), sharey=True, layout="constrained")
    names = dict.fromkeys(r["contender"] for host in found.values() for r in host["results"])
    names = [name for name in names if name not in (FLOOR, STOCK, BIG)]
    styles = dict(zip(names, zip("osD^vPX*h", plt.colormaps["tab10"].colors)))
    for axis, network in zip(panels.flat, networks(found)):
        axis.axvline(1, color="0.7", linewidth=1)
        for row, about in enumerate(found.values()):
            results = of(about, network, k)
            for name in names:
                ratio = results.get(name, {}).get("over_stock")
                if ratio is not None:
                    marker, color = styles[name]
                    axis.plot(ratio, row, marker, color=color, label=name, alpha=0.8)
            floor = results[STOCK]["over_stock"] / results[STOCK]["over_floor"]
            axis.plot(floor, row, "k|", markersize=14, label="floor")
        axis.set(title=network, xscale="log", xticks=[0.03, 0.1, 0.3, 1, 3, 10])
        axis.set_xticklabels(["0.03", "0.1", "0.3", "1", "3", "10"])
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_yticks(range(len(found)), [HOSTS[host] for host in found])
        axis.grid(axis="y", color="0.9")
    panels[0, 0].invert_yaxis()
    marks = {}
    for axis in panels.flat:
        marks.update(zip(*reversed(axis.get_legend_handles_labels())))
    figure.suptitle(f"Time of a micro-batch, divided by the time of stock Adam, accum_iters={k}")
    figure.legend(marks.values(), marks, loc="outside lower center", ncols=3)
    figure.savefig(RESULTS / "micro_batch.png", dpi=100)


def main():
    found = load()
    (RESULTS / "micro_batch.md").write_text(long_table(found), encoding="utf-8")
    draw(found)
    print(short_table(found))


if __name__ == "__main__":
    main()
