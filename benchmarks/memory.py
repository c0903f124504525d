"""What accumulation costs in memory: `python benchmarks/memory.py`.

Trains a network of 100 M parameters in four equal layers, with each Keras and backend that is
installed. Each contender runs in its own process. Prints how much more memory it takes at its peak
than stock Adam, in copies of the parameters: 1.00 is one accumulator. Memory is the resident set.
"""

import argparse
import os
import resource
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from shared.contenders import CONDITIONAL, IN_SLICES, OWN, SELECT, STOCK

CONFIGURATIONS = {
    "Keras 3, TensorFlow": {"KERAS_BACKEND": "tensorflow"},
    "Keras 3, JAX": {"KERAS_BACKEND": "jax"},
    "Keras 3, PyTorch": {"KERAS_BACKEND": "torch"},
    "tf_keras": {"TF_USE_LEGACY_KERAS": "1"},
}
ONE = "accum_iters=1"
COLUMNS = ONE, SELECT, CONDITIONAL, OWN, IN_SLICES
WIDTH, LAYERS, WINDOW = 5000, 4, 4
PARAMETERS = LAYERS * (WIDTH + 1) * WIDTH


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="processes of each contender")
    parser.add_argument("--host", choices=CONFIGURATIONS, help="one host; all by default")
    parser.add_argument("--columns", nargs="+", default=COLUMNS, choices=COLUMNS)
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        train(*options.inside)
        return
    columns = options.columns
    print(f"| Keras | {' | '.join(columns)} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for name in [options.host] if options.host else CONFIGURATIONS:
        environment = CONFIGURATIONS[name]
        host = "keras3" if "KERAS_BACKEND" in environment else "tf_keras"
        environment = {**os.environ, **environment}
        peaks = {who: [] for who in (STOCK, *columns)}
        for _ in range(options.rounds):
            for who, found in peaks.items():
                found.append(peak(host, who, environment))
        cells = [over(peaks[who], peaks[STOCK]) for who in columns]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def over(peaks, stock):
    if None in peaks or None in stock:
        return ""
    # The smallest peak: other processes can only add to it.
    return f"{(min(peaks) - min(stock)) / (4 * PARAMETERS):.2f}"


def peak(host, who, environment):
    """Return the peak in bytes, or None if the host or the contender is missing."""
    command = [sys.executable, __file__, "--inside", host, who]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    return None if result.returncode else int(result.stdout.split()[-1])


def train(host, who):
    import numpy as np
    from shared import contenders

    keras, accum, _ = contenders.load(host)
    found = contenders.find(host)
    found[IN_SLICES] = contenders.in_slices(host, 1)
    found[ONE] = contenders.contender(lambda k: accum.AdamAccumulate(accum_iters=1))
    contender = found[who]
    layers = [keras.layers.Dense(WIDTH) for _ in range(LAYERS)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers])
    model.compile(contender.optimizer(WINDOW), "mse")
    x = np.ones((3 * WINDOW, WIDTH), "float32")
    size = WINDOW if contender.big else 1
    model.fit(x, x, batch_size=size, verbose=0, callbacks=contender.callbacks())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()
