"""Make the tables and the plot from `benchmarks/results/*.json`: `python benchmarks/report.py`.

Writes `results/micro_batch.md`, which has every figure, and `results/micro_batch.png`, and prints
the tables that are part of README.md.
"""

import json
from pathlib import Path

from shared.contenders import BIG, CONDITIONAL, IN_SLICES, OURS, OWN, SELECT, STOCK

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
        f"| Keras | {' | '.join(COLUMNS)} |",
        f"| --- |{' ---: |' * len(COLUMNS)}",
    ]
    for host, about in found.items():
        if host != "tf_keras_2_15":
            ratios = of(about, SHORT)
            cells = " | ".join(cell(ratios, column) for column in COLUMNS)
            lines.append(f"| {HOSTS[host]} | {cells} |")
    return "\n".join(lines)


def default(host):
    """Return the gate that a user gets there who doesn't choose one."""
    return SELECT if host in ("keras2", "keras3_torch") else CONDITIONAL


def ranges_table(found):
    """The default in `fit` on each Keras: the least and the most."""
    lines = [
        "| network | over the floor | over a step of stock Adam | a window over the big batch |",
        "| --- | ---: | ---: | ---: |",
    ]
    for network in networks(found)[:-1]:  # the last one is the optimizer alone
        ratios = [(of(about, network), default(host)) for host, about in found.items()]
        floor = [each[gate] for each, gate in ratios]
        stock, big = ([each[gate] / each[other] for each, gate in ratios] for other in (STOCK, BIG))
        cells = [f"{min(each):.2f} to {max(each):.2f}" for each in (floor, stock, big)]
        lines.append(f"| {network} | {' | '.join(cells)} |")
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


def shown(ratios, host):
    """Return the figures of the picture: {candidate: time over the floor}."""
    names = {"the default": default(host), IN_SLICES: IN_SLICES, "Keras's own": OWN}
    return {name: ratios[of] for name, of in names.items() if ratios.get(of) is not None}


def draw(found):
    """Draw three candidates as bars, for SHORT: a group for each Keras that has Keras's own.

    The picture is as wide as a page, so that its letters have the size of the page's letters.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    groups = {HOSTS[host]: shown(of(about, SHORT), host) for host, about in found.items()}
    groups = {host: bars for host, bars in groups.items() if "Keras's own" in bars}
    colors = {"the default": "tab:blue", IN_SLICES: "lightskyblue", "Keras's own": "tab:orange"}
    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for place, name in enumerate(colors):
        at = [row for row, bars in enumerate(groups.values()) if name in bars]
        values = [bars[name] for bars in groups.values() if name in bars]
        drawn = axis.bar([x + 0.27 * (place - 1) for x in at], values, 0.25, color=colors[name])
        axis.bar_label(drawn, [f"{value:.2f}" for value in values])
        drawn.set_label(name)
    axis.axhline(1, color="0.4", linewidth=1, linestyle="--", label="the floor")
    axis.set_xticks(range(len(groups)), list(groups))
    axis.set(title=f"Time of a micro-batch: {SHORT}, accum_iters=8", ylabel="over the floor")
    axis.legend()
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "micro_batch.png", dpi=100)


def main():
    found = load()
    (RESULTS / "micro_batch.md").write_text(long_table(found), encoding="utf-8")
    draw(found)
    print(short_table(found), ranges_table(found), sep="\n\n")


if __name__ == "__main__":
    main()
