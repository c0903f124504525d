"""What a micro-batch costs on the Keras of this environment: `python benchmarks/micro_batch.py`.

Trains three networks and applies an optimizer alone to 20 M parameters, with this package, the
stock optimizer and peers (see `shared/contenders.py`), in windows of 8 micro-batches. Writes, as
JSON, the time of a micro-batch divided by the floor, the least that is possible: for a window of k
micro-batches, k - 1 bare accumulations `acc += g` and one stock update.

Only ratios of the smallest times are kept, of rounds in which all contenders take turns in one
process: a single time says more about the machine than about the code. A peer that fails has null.

`nox -f benchmarks/noxfile.py` runs this script on all hosts, with their peers, and draws the plot.
For the optimizer alone, another contender calls `decide`. The script runs on Python 3.7.
"""

import argparse
import json
import os
import platform
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from shared import alone, contenders, pytorch_loop
from shared.networks import LOSS, NETWORKS, draw
from shared.timing import smallest

MICRO_BATCH, MICRO_BATCHES = 16, 16
WINDOW = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("host", choices=("keras3", "tf_keras", "keras2"))
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contender")
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS, alone.NAME])
    parser.add_argument("--xla", action="store_true", help="compile on TensorFlow, as on a GPU")
    parser.add_argument("--write", type=Path, help="the JSON file to write")
    options = parser.parse_args()
    keras = contenders.load(options.host)[0]
    about = describe(options, keras)
    print(json.dumps(about), flush=True)
    results = []
    for network in options.networks:
        results += compare(options, keras, network)
        if options.write:
            text = json.dumps({**about, "results": results}, indent=1)
            options.write.write_text(text + "\n", encoding="utf-8")


def describe(options, keras):
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7
        import importlib_metadata as metadata
    packages = "keras tf_keras tensorflow tensorflow-cpu jax torch gradient-accumulator runai"
    versions = {"Python": platform.python_version()}
    for package in packages.split():
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return {
        "host": options.host,
        "backend": keras.backend.backend() if options.host == "keras3" else "tensorflow",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
        "micro_batch": MICRO_BATCH,
        "rounds": options.rounds,
    }


def compare(options, keras, network, k=WINDOW):
    """Let the contenders take turns. Return a list of {network, contender, over_floor}."""
    keras.backend.clear_session()
    host, is_torch = options.host, keras.backend.backend() == "torch"
    found = contenders.find(host)
    if host == "keras3":
        found[contenders.IN_SLICES] = contenders.in_slices(host, MICRO_BATCH)
    if network == alone.NAME:
        if host != "keras2" and not is_torch:
            found[contenders.DECIDE] = contenders.default(host)
        steps = {}
        for name, contender in found.items():
            if not (contender.big or name.startswith("gradient-accumulator, model")):
                more = {"xla": options.xla, "decide": k if name == contenders.DECIDE else None}
                optimizer = contender.optimizer(k)
                steps[name] = alone.windows(host, keras, optimizer, MICRO_BATCHES, **more)
    else:
        make = NETWORKS[network]
        steps = {name: fits(keras, make, c, k, options.xla) for name, c in found.items()}
    if is_torch:
        steps[contenders.LOOP] = pytorch_loop.windows(keras, network, k, MICRO_BATCH, MICRO_BATCHES)
    working = {name: step for name, step in steps.items() if runs(name, step)}
    times = smallest(working, options.rounds)
    floor = ((k - 1) * times[contenders.FLOOR] + times[contenders.STOCK]) / k
    results = []
    for name in steps:
        ratio = round(times[name] / floor, 3) if name in times else None
        results.append({"network": network, "contender": name, "over_floor": ratio})
        print(json.dumps(results[-1]), flush=True)
    return results


def runs(name, step):
    """Return True if the step runs. Only a peer may fail."""
    try:
        step()
    except Exception:
        if name in contenders.NEEDED:
            raise
        return False
    return True


def fits(keras, network, contender, k, xla=False, micro_batches=MICRO_BATCHES):
    """Return a function that fits this many micro-batches."""
    model, make_x = network(keras)
    x, y = draw(make_x, micro_batches * MICRO_BATCH)
    model = contender.wrap(model, k)
    model.compile(contender.optimizer(k), LOSS, **({"jit_compile": True} if xla else {}))
    size = MICRO_BATCH * (k if contender.big else 1)
    settings = {"batch_size": size, "shuffle": False, "callbacks": contender.callbacks()}
    return lambda: model.fit(x, y, verbose=0, **settings)


if __name__ == "__main__":
    main()
