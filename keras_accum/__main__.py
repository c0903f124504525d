"""See that accumulated micro-batches train as the big batch does: `python -m keras_accum`.

A small network learns scikit-learn's digits from big batches, from the same batches accumulated in
micro-batches, and from the micro-batches alone. Then the accumulated run is stopped in the middle
of a window, saved, and carried on in a new process. The exit status is 0 if accumulating gave the
weights of the big batch and stopping changed no bit of them.
"""

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

LEARN = 1500  # of the 1797 digits; the others are for testing

# --optimizer: our class, the arguments of both sides, those that only the stock side needs.
OPTIMIZERS = {
    "sgd": ("SGDAccumulate", {"learning_rate": 0.02, "momentum": 0.9}, {}),
    "adam": ("AdamAccumulate", {}, {}),
    "amsgrad": ("AMSGradAccumulate", {}, {"amsgrad": True}),
    "rmsprop": ("RMSpropAccumulate", {}, {}),
}

# How far from the big batch's weights rounding may lead; micro-batches alone end some 0.3 away.
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}

INSTALL = """This needs scikit-learn, matplotlib, tqdm and a Keras. One of these brings them all:
    pip install 'keras_accum[demo,tensorflow]'    (Keras 3; or jax or torch for tensorflow)
    pip install 'keras_accum[demo,legacy]'        (tf_keras, which is Keras 2)"""


class Host(NamedTuple):
    """All that differs from one Keras to the next."""

    keras: object
    floatx: str
    stock: type
    accumulate: type
    file: str  # the kind that keeps an optimizer's state


class Run(NamedTuple):
    """What came of one training run."""

    batch: int
    losses: list
    accuracy: float
    weights: list


def main(arguments=None):
    """Run the demonstration; 0 if it showed what it claims."""
    options = parse(arguments)
    try:
        import matplotlib  # noqa: F401  used later, but better missed now
        import tqdm  # noqa: F401

        host = find_host(options)
        learn, test = load_digits(options, host)
    except ImportError as error:
        print(f"{error}\n\n{INSTALL}", file=sys.stderr)
        return 2

    print(describe(host))
    print(f"{options.optimizer}, {len(learn[0])} digits, same initial weights, same order\n")
    runs = three_ways(options, host, learn, test)
    print_table(runs)
    plot(runs, options.plot)
    print(f"\nloss curves: {os.path.abspath(options.plot)}")

    exact, accumulated = runs["big batch"].weights, runs["accumulated"].weights
    position, resumed = stop_and_resume(options, host, learn)
    print(f"\nstopped {position} micro-batches into a window of {options.accum_iters}, saved,")
    print("loaded in a new process and went on there;")
    print(f"difference to the run that never stopped: {difference(resumed, accumulated):.1e}\n")

    tolerance = TOLERANCE[host.floatx]
    claims = {
        f"accumulating gives the big batch's weights (to {tolerance:.0e})": (
            difference(accumulated, exact) <= tolerance
        ),
        "stopping in a window changes no bit": difference(resumed, accumulated) == 0,
    }
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'FAILS'}: {claim}")
    return 0 if all(claims.values()) else 1


def parse(arguments):
    """The options on the command line, or on a bad one a message and exit status 2."""
    about = __doc__.split("\n\n")[1]
    parser = argparse.ArgumentParser(
        prog="python -m keras_accum",
        description=about,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    hosts = ["auto", "keras3", "tf_keras"]
    option("--epochs", type=int, default=15, help="passes over the digits")
    option("--batch", type=int, default=10, help="digits in a micro-batch")
    option("--accum-iters", type=int, default=5, help="micro-batches in a window")
    option("--optimizer", choices=list(OPTIMIZERS), default="adam", help="the rule to train with")
    option("--host", choices=hosts, default="auto", help="the Keras to use")
    option("--plot", metavar="PATH", default="keras_accum.png", help="where the loss curves go")
    options = parser.parse_args(arguments)

    for name, least in ("epochs", 1), ("batch", 1), ("accum_iters", 2):
        if getattr(options, name) < least:
            flag = "--" + name.replace("_", "-")
            parser.error(f"{flag} must be at least {least}. Received: {getattr(options, name)}")
    window = options.batch * options.accum_iters
    if window > LEARN:
        parser.error(f"--batch times --accum-iters must be at most {LEARN}. Received: {window}")
    folder = os.path.dirname(os.path.abspath(options.plot))
    if not options.plot.endswith(".png") or not os.path.isdir(folder):
        parser.error(f"--plot must be a .png in a folder that exists. Received: {options.plot}")
    return options


def find_host(options):
    """Import one Keras and make it compute as precisely as it can, and the same each time."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["TF_DETERMINISTIC_OPS"] = "1"  # or threads add in any order
    module = "keras_accum" if options.host == "auto" else f"keras_accum.{options.host}"
    accumulate = getattr(importlib.import_module(module), OPTIMIZERS[options.optimizer][0])
    # The stock class is the first that ours inherits from outside this package.
    stock = next(c for c in accumulate.__mro__ if not c.__module__.startswith("keras_accum"))
    keras = importlib.import_module(stock.__module__.split(".")[0])
    if keras.backend.backend() == "tensorflow":
        keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(0)
    file = "stopped.h5" if keras.__version__.startswith("2.") else "stopped.keras"
    return Host(keras, keras.backend.floatx(), stock, accumulate, file)


def describe(host):
    """The Keras, its backend and its precision, in a line."""
    name, version = host.keras.__name__, host.keras.__version__
    backend = host.keras.backend.backend()
    reason = "" if backend == "tensorflow" else " (float64 throughout only on TensorFlow)"
    return f"{name} {version} on {backend}, in {host.floatx}{reason}"


def load_digits(options, host):
    """(images, labels) to learn from, in whole windows and a fixed order, and others to test on."""
    import numpy
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    order = numpy.random.RandomState(0).permutation(len(labels))
    images, labels = (images / 16).astype(host.floatx).reshape(-1, 8, 8, 1)[order], labels[order]
    learn = LEARN - LEARN % (options.batch * options.accum_iters)
    return (images[:learn], labels[:learn]), (images[LEARN:], labels[LEARN:])


def build(options, host, accumulated):
    """The untrained network. No layer in it mixes the samples of a batch or draws random numbers,
    and none has a kink (relu), where rounding alone could change a gradient visibly."""
    _, arguments, stock_only = OPTIMIZERS[options.optimizer]
    if accumulated:
        optimizer = host.accumulate(accum_iters=options.accum_iters, **arguments)
    else:
        optimizer = host.stock(**arguments, **stock_only)

    host.keras.utils.set_random_seed(0)  # the same initial weights each time
    layers = host.keras.layers
    model = host.keras.Sequential(
        [
            host.keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="tanh"),
            layers.Conv2D(32, 3, activation="tanh"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = host.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    return model


def fit(model, digits, batch, epochs, **more):
    """Train on the digits in their order; the loss of each epoch."""
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
    with tqdm(total=options.epochs, desc=f"{name:13}", unit="epoch") as bar:
        progress = host.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: bar.update())
        losses = fit(model, learn, batch, options.epochs, callbacks=[progress])
    images, labels = test
    accuracy = (model.predict(images, verbose=0).argmax(axis=1) == labels).mean()
    return Run(batch, losses, accuracy, model.get_weights())


def stop_and_resume(options, host, learn):
    """Stop in the middle of a window; where in it a new process went on, and to what weights."""
    window = options.batch * options.accum_iters
    before_window = len(learn[0]) // window // 2 * window
    stop = before_window + options.accum_iters // 2 * options.batch

    # By its full name, as another process finds it: here it may be in a module named __main__.
    from keras_accum.__main__ import resume

    model = build(options, host, accumulated=True)
    fit(model, learn, options.batch, options.epochs // 2)
    fit(model, [array[:stop] for array in learn], options.batch, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, host.file)
        model.save(path)
        fresh = multiprocessing.get_context("spawn")  # inherits nothing from this process
        with ProcessPoolExecutor(1, mp_context=fresh) as new_process:
            return new_process.submit(resume, options, path, stop).result()


def resume(options, path, stop):
    """What the new process does: load, finish the epoch from `stop`, train the epochs left."""
    host = find_host(options)
    learn, _ = load_digits(options, host)
    ours = {host.accumulate.__name__: host.accumulate}
    model = host.keras.models.load_model(path, custom_objects=ours)
    position = model.optimizer.window_position
    fit(model, [array[stop:] for array in learn], options.batch, 1)
    fit(model, learn, options.batch, options.epochs - options.epochs // 2 - 1)
    return position, model.get_weights()


def difference(some, others):
    """The largest difference between the weights of two models."""
    return max(abs(a - b).max() for a, b in zip(some, others))


def print_table(runs):
    """What each run held in memory at a time and where it got."""
    print(f"\n{'':13}{'batch in memory':>18}{'difference to big batch':>26}{'test accuracy':>16}")
    for name, run in runs.items():
        far = difference(run.weights, runs["big batch"].weights)
        print(f"{name:13}{run.batch:18}{far:26.1e}{run.accuracy:16.1%}")


def plot(runs, path):
    """The loss curves, the accumulated one dashed over the one that it covers."""
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    for (name, run), style in zip(runs.items(), ("-", "--", "-")):
        axes.plot(range(1, len(run.losses) + 1), run.losses, style, label=name)
    axes.set(xlabel="epoch", ylabel="training loss", yscale="log")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
