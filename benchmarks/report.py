"""Make the tables and the plot from `benchmarks/results/*.json`: `python benchmarks/report.py`.

Writes `results/micro_batch.md`, which has every figure, and `results/micro_batch.png`, and prints
the table that is part of docs/cost.md.
"""

import json
from pathlib import Path

from contenders import BIG, FLOOR, LOOP, OURS, OWN, STOCK

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
# In the order of the columns. The cell of a peer names the peer.
COLUMNS = [*OURS, OWN, LOOP, "peers", STOCK, BIG]


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
    """The time of a micro-batch divided by the floor, for windows of k."""
    lines = [
        f"| host | network | {' | '.join(COLUMNS)} |",
        f"| --- | --- |{' ---: |' * len(COLUMNS)}",
    ]
    for host, about in found.items():
        for network in networks({host: about}):
            results = of(about, network, k)
            peers = [n for n in results if n not in COLUMNS and n != FLOOR]
            cells = [
                "; ".join(f"{name}: {cell(results, name)}" for name in peers)
                if column == "peers"
                else cell(results, column)
                for column in COLUMNS
            ]
            lines.append(f"| {HOSTS[host]} | {network} | {' | '.join(cells)} |")
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


def draw(found):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    columns = networks(found)
    figure, axes = plt.subplots(
        len(found), len(columns), figsize=(3.2 * len(columns), 2.4 * len(found)), squeeze=False
    )
    names = dict.fromkeys(r["contender"] for host in found.values() for r in host["results"])
    names = [name for name in names if name not in (FLOOR, STOCK, BIG)]
    colors = dict(zip(names, plt.colormaps["tab10"].colors))
    lines = {}
    for row, (host, about) in zip(axes, found.items()):
        for axis, network in zip(row, columns):
            ks = sorted({r["k"] for r in about["results"] if r["network"] == network})
            for name in names:
                values = [of(about, network, k).get(name, {}).get("over_stock") for k in ks]
                if values and None not in values:
                    style = "o-" if name in OURS else "s--"
                    lines[name] = axis.plot(ks, values, style, color=colors[name], markersize=4)[0]
            floors = [r[STOCK] for r in (of(about, network, k) for k in ks)]
            floors = [r["over_stock"] / r["over_floor"] for r in floors]
            lines["floor"] = axis.plot(ks, floors, "k:", linewidth=1)[0]
            axis.axhline(1, color="0.7", linewidth=1)
            axis.set_xscale("log", base=2)
            axis.set_xticks(ks, ks)
            axis.set_ylim(bottom=0)
        row[0].set_ylabel(HOSTS[host])
    for axis, network in zip(axes[0], columns):
        axis.set_title(network)
    figure.suptitle("Time of a micro-batch, divided by the time of stock Adam without accumulation")
    figure.supxlabel("accum_iters", y=0.06)
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=4)
    figure.tight_layout(rect=(0, 0.06, 1, 0.99))
    figure.savefig(RESULTS / "micro_batch.png", dpi=80)


def main():
    found = load()
    (RESULTS / "micro_batch.md").write_text(long_table(found), encoding="utf-8")
    draw(found)
    print(short_table(found))


if __name__ == "__main__":
    main()
