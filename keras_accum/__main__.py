"""See that accumulated micro-batches train as the big batch does: `python -m keras_accum`.

A small network learns scikit-learn's digits three times: from big batches, from the same batches
accumulated in micro-batches, and from the micro-batches alone. Then the accumulated run stops in
the middle of a window, is saved, and goes on in a new process. The exit status is 0 if the
accumulated run has the weights of the big batch and if stopping changed no bit of these weights.
"""

import argparse
import faulthandler
import importlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import warnings
from typing import NamedTuple

from keras_accum.host import module_name, uses_legacy_keras

LEARN = 1500  # of the 1797 digits; the others are for testing

# --optimizer: our class, the arguments of both sides, the arguments of the stock side alone.
OPTIMIZERS = {
    "sgd": ("SGDAccumulate", {"learning_rate": 0.02, "momentum": 0.9}, {}),
    "adam": ("AdamAccumulate", {}, {}),
    "amsgrad": ("AMSGradAccumulate", {}, {"amsgrad": True}),
    "rmsprop": ("RMSpropAccumulate", {}, {}),
}

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
DIGITS = {"float64": 16, "float32": 7}  # what rounding leaves of a number

# How far rounding may lead from the big batch's weights. Micro-batches alone end some 0.3 away.
# The slope of relu jumps at 0, so rounding counts for much more: see benchmarks/float32.py.
TOLERANCE = {
    ("float64", "tanh"): 1e-10,
    ("float64", "relu"): 1e-10,
    ("float32", "tanh"): 1e-4,
    ("float32", "relu"): 5e-2,
}


class CannotStart(Exception):
    """The demo needs something that is not there. The message is for the user."""


class Host(NamedTuple):
    """All that differs from one Keras to the next."""

    keras: object
    backend: str
    dtype: str
    stock: type
    accumulate: type
    file: str  # the kind of file that keeps an optimizer's state


class Run(NamedTuple):
    """The result of one training."""

    batch: int
    updates: int
    losses: list
    accuracy: float
    weights: list


def main(arguments=None):
    """Run the demo and return the exit status, which is 0 if the demo showed what it claims."""
    options = parse(arguments)
    try:
        return demonstrate(options)
    except CannotStart as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130


def demonstrate(options):
    """Train in three ways, then stop and resume, and print the results."""
    print(f"The loss curves will be in {os.path.abspath(options.plot)}", flush=True)
    host = find_host(options)
    learn, test = load_digits(options, host)
    print(describe(options, host, learn), flush=True)

    runs = three_ways(options, host, learn, test)
    print_table(options, runs)
    save_picture(draw(options, runs), options.plot)
    with tempfile.TemporaryDirectory() as folder:
        position = stop(options, host, learn, folder)
        into = f"{count(position, 'micro-batch')} into a window of {options.accum_iters}"
        print(f"\nStopped {into} and saved. A new process goes on ...", flush=True)
        resumed = go_on_in_new_process(options, folder)

    accumulated, tolerance = runs["accumulated"], TOLERANCE[host.dtype, options.activation]
    to_big = difference(accumulated.weights, runs["big batch"].weights)
    to_unstopped = difference(resumed, accumulated.weights)
    same = f"off by {to_big:.1e}, allowed {tolerance:.0e}"
    claims = {
        f"accumulating gives the big batch's weights ({same})": to_big <= tolerance,
        f"stopping in a window changes no bit (off by {to_unstopped:.1g})": to_unstopped == 0,
    }
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'FAILS'}: {claim}")
    return 0 if all(claims.values()) else 1


# -- the command line ----------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """End with one line. The usage, some lines long, would hide it."""
        self.exit(2, f"{self.prog}: {message}\n")


def parse(arguments):
    """The options on the command line. A bad option ends in a message and exit status 2."""
    parser = Parser(
        prog="python -m keras_accum",
        description=__doc__.split("\n\n")[1],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    hosts, dtypes = ["auto", "keras3", "tf_keras"], ["auto", "float64", "float32"]
    dtype_help = "the precision; auto is float64 on TensorFlow and float32 elsewhere"
    option("--epochs", type=whole(1), default=15, help="passes over the digits")
    option("--batch", type=whole(1), default=10, help="digits in a micro-batch")
    option("--accum-iters", type=whole(2), default=5, help="micro-batches in a window")
    option("--optimizer", choices=list(OPTIMIZERS), default="adam", help="the rule to train with")
    option("--dtype", choices=dtypes, default="auto", help=dtype_help)
    option("--activation", choices=["tanh", "relu"], default="tanh", help="of the network")
    option("--seed", type=whole(0, 2**32 - 1), default=0, help="of the initial weights")
    option("--host", choices=hosts, default="auto", help="the Keras to use")
    option(
        "--plot",
        metavar="PATH",
        type=writable_png,
        default="keras_accum.png",
        help="where the loss curves go",
    )
    options = parser.parse_args(arguments)
    window = options.batch * options.accum_iters
    if window > LEARN:
        parser.error(f"--batch times --accum-iters must be at most {LEARN}. Received: {window}")
    return options


def whole(least, most=None):
    """The type of an option that is a whole number from `least` to `most`."""
    allowed = f"at least {least}" if most is None else f"from {least} to {most}"

    def convert(text):
        # int() takes more, such as "1_000".
        number = int(text) if re.match(r"[+-]?\d+$", text, re.ASCII) else least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"must be a whole number, {allowed}. Received: {text}")
        return number

    return convert


def writable_png(path):
    """`path`, if a picture can be written there, which is only known by trying."""
    if not path.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"must end in .png. Received: {path}")
    existed = os.path.lexists(path)
    try:
        open(path, "ab").close()
        if not existed:
            os.remove(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"must be a file that can be written. Received: {path} ({error.strerror})"
        ) from error
    return path


# -- the host ------------------------------------------------------------------------------------


def hide_logs():
    """Keep off the terminal what frameworks log and warn of.

    TensorFlow writes some lines in C++, straight to file descriptor 2, whatever its settings are.
    So descriptor 2 leads nowhere, and Python's `sys.stderr` has the terminal by another one.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    faulthandler.enable(sys.stderr)  # a crash in C++ still says where


def find_host(options):
    """Import one Keras. Make it compute in `--dtype`, and the same each time."""
    try:
        module = find_module(options)
        for package in "tqdm", "matplotlib", "sklearn":  # used later, but better missed now
            importlib.import_module(package)
        accumulate = getattr(importlib.import_module(module), OPTIMIZERS[options.optimizer][0])
    except (ImportError, ValueError) as error:  # Keras raises a ValueError for some backends
        raise CannotStart(f"The demo can't start: {error}\n{install(options)}") from error

    # The stock class is the first that ours inherits from outside this package.
    stock = next(c for c in accumulate.__mro__ if not c.__module__.startswith("keras_accum"))
    keras = importlib.import_module(stock.__module__.split(".")[0])
    backend = keras.backend.backend()
    dtype = options.dtype
    if dtype == "auto":
        dtype = "float64" if backend == "tensorflow" else "float32"
    if dtype == "float64" and backend != "tensorflow":
        raise CannotStart(
            "--dtype float64 needs the backend tensorflow, the only one that computes in float64 "
            f"throughout. Found: {backend}"
        )
    os.environ["TF_DETERMINISTIC_OPS"] = "1"  # or threads add in any order
    keras.backend.set_floatx(dtype)
    file = "stopped.h5" if keras.__version__.startswith("2.") else "stopped.keras"
    return Host(keras, backend, dtype, stock, accumulate, file)


def find_module(options):
    """The name of this package's module for the Keras to use."""
    module = module_name() if options.host == "auto" else f"keras_accum.{options.host}"
    backend = os.environ.get("KERAS_BACKEND")
    if module == "keras_accum.keras3" and backend and backend not in BACKENDS:
        raise CannotStart(
            f"KERAS_BACKEND must be {', '.join(BACKENDS)} or unset. Received: {backend}"
        )
    if module == "keras_accum.keras2":
        raise CannotStart("The demo needs Keras 3 or tf_keras. Found: standalone Keras 2")
    return module


def install(options):
    """How to install what is missing."""
    legacy = {"auto": uses_legacy_keras(), "keras3": False, "tf_keras": True}[options.host]
    extra = "legacy" if legacy else os.environ.get("KERAS_BACKEND") or "tensorflow"
    return f"In a clone of keras_accum, install what it needs: pip install '.[{extra},demo]'"


def describe(options, host, learn):
    """Two lines on what is trained and how precisely."""
    keras = f"{host.keras.__name__} {host.keras.__version__} on {BACKENDS[host.backend]}"
    digits, epochs = count(len(learn[0]), "digit"), count(options.epochs, "epoch")
    advice = "Only TensorFlow computes in float64 throughout."
    if host.backend == "tensorflow":
        advice = {
            "float64": "Most trainings use float32, which is --dtype float32.",
            "float32": "Rounding all but disappears with --dtype float64.",
        }[host.dtype]
    return (
        f"{keras}: {rule(options)}, {digits}, {epochs}, same initial weights, same order\n"
        f"{host.dtype} ({DIGITS[host.dtype]} decimal digits), {options.activation}. {advice}\n"
    )


def rule(options):
    """The name of the optimizer."""
    return OPTIMIZERS[options.optimizer][0].replace("Accumulate", "")


def count(number, noun):
    """A number with its noun in singular or plural."""
    plural = {"micro-batch": "micro-batches"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"


# -- the trainings -------------------------------------------------------------------------------


def load_digits(options, host):
    """(images, labels) to learn from, in whole windows and a fixed order, and others to test on."""
    import numpy
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    order = numpy.random.RandomState(0).permutation(len(labels))
    images, labels = (images / 16).astype(host.dtype).reshape(-1, 8, 8, 1)[order], labels[order]
    learn = LEARN - LEARN % (options.batch * options.accum_iters)
    return (images[:learn], labels[:learn]), (images[LEARN:], labels[LEARN:])


def build(options, host, accumulated):
    """The untrained network. No layer in it mixes the samples of a batch or draws random numbers.

    By default, no layer has a kink (relu), where rounding alone can change a gradient visibly.
    """
    _, arguments, stock_only = OPTIMIZERS[options.optimizer]
    if accumulated:
        optimizer = host.accumulate(accum_iters=options.accum_iters, **arguments)
    else:
        optimizer = host.stock(**arguments, **stock_only)

    host.keras.utils.set_random_seed(options.seed)  # the same initial weights each time
    layers = host.keras.layers
    model = host.keras.Sequential(
        [
            host.keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation=options.activation),
            layers.Conv2D(32, 3, activation=options.activation),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = host.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    return model


def fit(model, digits, batch, epochs, **more):
    """Train on the digits in their order. Return the loss of each epoch."""
    if epochs == 0:
        return []
    images, labels = digits
    settings = {"batch_size": batch, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(images, labels, **settings, **more).history.get("loss")


def three_ways(options, host, learn, test):
    """The same training from big batches, from them accumulated, and from micro-batches alone."""
    micro, big = options.batch, options.batch * options.accum_iters
    return {
        "big batch": train(options, host, learn, test, "big batch", big),
        "accumulated": train(options, host, learn, test, "accumulated", micro, accumulated=True),
        "micro-batches": train(options, host, learn, test, "micro-batches", micro),
    }


def train(options, host, learn, test, name, batch, accumulated=False):
    """One run from start to end, under a progress bar."""
    from tqdm import tqdm

    model = build(options, host, accumulated)
    # No bar where there is no terminal.
    with tqdm(total=options.epochs, desc=f"{name:13}", unit="epoch", disable=None) as bar:
        progress = host.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: bar.update())
        losses = fit(model, learn, batch, options.epochs, callbacks=[progress])
    images, labels = test
    accuracy = (model.predict(images, verbose=0).argmax(axis=1) == labels).mean()
    updates = options.epochs * len(learn[0]) // batch
    if accumulated:
        updates = model.optimizer.completed_updates
    return Run(batch, updates, losses, accuracy, model.get_weights())


def stop(options, host, learn, folder):
    """Train to the middle of a window, save, and return how many micro-batches are in it."""
    model = build(options, host, accumulated=True)
    fit(model, learn, options.batch, options.epochs // 2)
    fit(model, [array[: middle(options, learn)] for array in learn], options.batch, 1)
    model.save(os.path.join(folder, host.file))
    return model.optimizer.window_position


def middle(options, learn):
    """How many digits of an epoch come before the stop."""
    window = options.batch * options.accum_iters
    return len(learn[0]) // window // 2 * window + options.accum_iters // 2 * options.batch


def go_on_in_new_process(options, folder):
    """The weights that a new process ends with."""
    import numpy

    program = "from keras_accum import __main__ as demo; demo.go_on()"
    command = [sys.executable, "-c", program, json.dumps(vars(options)), folder]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "universal_newlines": True}
    job = subprocess.run(command, **pipe)
    if job.returncode:
        raise RuntimeError(f"The new process failed:\n{job.stdout}")
    with numpy.load(os.path.join(folder, "weights.npz")) as weights:
        return list(weights.values())


def go_on():
    """What the new process does: load the file, finish the epoch, train the epochs left."""
    import numpy

    options, folder = argparse.Namespace(**json.loads(sys.argv[1])), sys.argv[2]
    host = find_host(options)
    learn, _ = load_digits(options, host)
    ours = {host.accumulate.__name__: host.accumulate}
    model = host.keras.models.load_model(os.path.join(folder, host.file), custom_objects=ours)
    fit(model, [array[middle(options, learn) :] for array in learn], options.batch, 1)
    fit(model, learn, options.batch, options.epochs - options.epochs // 2 - 1)
    numpy.savez(os.path.join(folder, "weights.npz"), *model.get_weights())


# -- the results ---------------------------------------------------------------------------------


def difference(some, others):
    """The largest difference between the weights of two models."""
    return max(abs(a - b).max() for a, b in zip(some, others))


def print_table(options, runs):
    """What each run held in memory at a time, and where it got.

    The difference is the largest one of a weight from the big batch's.
    """
    heads = "batch in memory", "updates", "training loss", "test accuracy", "weight difference"
    widths = [len(head) + 2 for head in heads]
    row = "{:13}" + "".join(f"{{:>{width}}}" for width in widths)
    print(row.format("", *heads))
    for name, run in runs.items():
        off = difference(run.weights, runs["big batch"].weights)
        loss, accuracy = f"{run.losses[-1]:.4f}", f"{run.accuracy:.1%}"
        print(row.format(name, run.batch, run.updates, loss, accuracy, f"{off:.1e}"))
    print(
        f"Plain micro-batches make {options.accum_iters} times as many updates, so their loss may "
        "be lower."
    )


def draw(options, runs):
    """The loss curves as a figure, the accumulated one dashed over the one that it covers."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    many, size = options.accum_iters, options.batch
    stock, ours = rule(options), OPTIMIZERS[options.optimizer][0]
    labels = {
        "big batch": f"{stock}, batches of {size * many}",
        "accumulated": f"{ours}(accum_iters={many}), batches of {size}",
        "micro-batches": f"{stock}, batches of {size}: {many} times as many updates",
    }
    styles = {
        "big batch": {"color": "#9ecae1", "linewidth": 8, "solid_capstyle": "round"},
        "accumulated": {"color": "#08306b", "linewidth": 2, "linestyle": "--"},
        "micro-batches": {"color": "#d95f02", "linewidth": 2},
    }
    is_point = options.epochs == 1
    figure = Figure(figsize=(7, 4), dpi=200, layout="constrained")
    axes = figure.subplots()
    for name, run in runs.items():
        line = axes.plot(range(1, options.epochs + 1), run.losses, label=labels[name])[0]
        line.set(**styles[name])
        if is_point:
            line.set(linestyle="none", marker="o", markersize=5 + line.get_linewidth())
    axes.set(
        title=f"{many} accumulated batches of {size} train as one batch of {size * many}",
        xlabel="epoch",
        ylabel="training loss (cross-entropy)",
        yscale="linear" if is_point else "log",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if not is_point:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def save_picture(figure, path):
    """Save as a PNG of 64 colors, which makes a much smaller file."""
    from PIL import Image

    picture = io.BytesIO()
    figure.savefig(picture)
    Image.open(picture).convert("RGB").quantize(64).save(path, format="PNG", optimize=True)


if __name__ == "__main__":
    hide_logs()
    sys.exit(main())
