"""Make the tables and the plot from `benchmarks/results/*.json`: `python benchmarks/report.py`.

Writes `results/micro_batch.md`, which has every figure, and `results/micro_batch.png`, and prints
the table that is part of docs/cost.md.
"""

import json
from pathlib import Path

from shared.contenders import BIG, FLOOR, IN_SLICES, OURS, OWN, STOCK

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
SHORT = "MLP, 3.2 M"
COLUMNS = [*OURS, IN_SLICES, OWN, STOCK]


def load():
    """Return {host: the contents of its JSON file}."""
    paths = {host: RESULTS / f"{host}.json" for host in HOSTS}
    return {h: json.loads(p.read_text("utf-8")) for h, p in paths.items() if p.exists()}


def networks(found):
    return list(dict.fromkeys(r["network"] for host in found.values() for r in host["results"]))


def of(about, network):
    """Return {contender: time over the floor} for a network; None is an error."""
    found = [r for r in about["results"] if r["network"] == network]
    return {r["contender"]: r["over_floor"] for r in found}


def cell(ratios, name):
    if name not in ratios:
        return ""
    return "error" if ratios[name] is None else f"{ratios[name]:.2f}"


def short_table(found):
    """The time of a micro-batch divided by the floor.

    Only of the network SHORT, without peers, and without TensorFlow 2.15, whose figures are
    those of tf_keras. All are in the long table.
    """
    lines = [
        f"| host | {' | '.join(COLUMNS)} |",
        f"| --- |{' ---: |' * len(COLUMNS)}",
    ]
    for host, about in found.items():
        if host != "tf_keras_2_15":
            ratios = of(about, SHORT)
            cells = " | ".join(cell(ratios, column) for column in COLUMNS)
            lines.append(f"| {HOSTS[host]} | {cells} |")
    return "\n".join(lines)


def long_table(found):
    lines = []
    for host, about in found.items():
        versions = ", ".join(" ".join(pair) for pair in about["versions"].items())
        lines += [f"## {HOSTS[host]}", ""]
        lines += [f"{about['machine']}; {versions}; at least {about['rounds']} rounds.", ""]
        of_networks = {network: of(about, network) for network in networks({host: about})}
        lines.append(f"| contender | {' | '.join(of_networks)} |")
        lines.append(f"| --- |{' ---: |' * len(of_networks)}")
        names = dict.fromkeys(name for ratios in of_networks.values() for name in ratios)
        for name in names:
            cells = " | ".join(cell(ratios, name) for ratios in of_networks.values())
            lines.append(f"| {name} | {cells} |")
        lines.append("")
    return "\n".join(lines)


def draw(found):
    """Draw a panel for each network, with a row for each host and a mark for each contender.

    The picture is as wide as a page, so that its letters have the size of the page's letters.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    figure, panels = plt.subplots(2, 2, figsize=(8, 7), sharey=True, layout="constrained")
    names = dict.fromkeys(r["contender"] for host in found.values() for r in host["results"])
    names = [name for name in names if name not in (FLOOR, BIG)]
    styles = dict(zip(names, zip("osD^vPX*hd8", [*plt.colormaps["tab10"].colors, "black"])))
    for axis, network in zip(panels.flat, networks(found)):
        axis.axvline(1, color="0.7", linewidth=1)
        for row, about in enumerate(found.values()):
            ratios = of(about, network)
            for name in names:
                if ratios.get(name) is not None:
                    marker, color = styles[name]
                    axis.plot(ratios[name], row, marker, color=color, label=name, alpha=0.8)
        axis.set(title=network, xscale="log", xticks=[0.1, 0.3, 1, 3, 10, 30])
        axis.set_xticklabels(["0.1", "0.3", "1", "3", "10", "30"])
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_yticks(range(len(found)), [HOSTS[host] for host in found])
        axis.grid(axis="y", color="0.9")
    panels[0, 0].invert_yaxis()
    marks = {}
    for axis in panels.flat:
        marks.update(zip(*reversed(axis.get_legend_handles_labels())))
    figure.suptitle("Time of a micro-batch, divided by the floor, accum_iters=8")
    figure.legend(marks.values(), marks, loc="outside lower center", ncols=3)
    figure.savefig(RESULTS / "micro_batch.png", dpi=100)


def main():
    found = load()
    (RESULTS / "micro_batch.md").write_text(long_table(found), encoding="utf-8")
    draw(found)
    print(short_table(found))


if __name__ == "__main__":
    main()
