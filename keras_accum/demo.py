"""The trainings of `python -m keras_accum`, and their picture. `__main__` has the command line."""

import argparse
import importlib.util
import io
import json
import os
import subprocess
import sys
from typing import NamedTuple

from keras_accum.host import module_name, uses_legacy_keras

LEARN = 1500  # of the 1797 digits; the others are for testing

# By --optimizer: our class, the arguments of both sides, the arguments of the stock side alone.
OPTIMIZERS = {
    "sgd": ("SGDAccumulate", {"learning_rate": 0.02, "momentum": 0.9}, {}),
    "adam": ("AdamAccumulate", {}, {}),
    "amsgrad": ("AMSGradAccumulate", {}, {"amsgrad": True}),
    "rmsprop": ("RMSpropAccumulate", {}, {}),
}

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


class CannotStart(Exception):
    """The demo needs something that is not there. The message is for the user."""


class Run(NamedTuple):
    """The result of one training."""

    batch: int
    updates: int
    losses: list
    accuracy: float
    weights: list


class Demo:
    """The digits and the network on one Keras, which computes in `--dtype`, the same each time."""

    def __init__(self, options):
        self.options = options
        name, self._arguments, self._stock_only = OPTIMIZERS[options.optimizer]
        try:
            module = _find_module(options)
            for package in "tqdm", "matplotlib", "sklearn":  # used later, but better missed now
                importlib.import_module(package)
            self._ours = getattr(importlib.import_module(module), name)
        except (ImportError, ValueError) as error:  # Keras raises a ValueError for some backends
            raise CannotStart(f"{error}\n{_remedy(options, error)}") from error
        self._stock = self._ours._stock_class
        self.keras = importlib.import_module(self._stock.__module__.split(".")[0])
        self.backend = self.keras.backend.backend()
        auto = "float64" if self.backend == "tensorflow" else "float32"
        self.dtype = auto if options.dtype == "auto" else options.dtype
        if self.dtype == "float64" and auto == "float32":
            raise CannotStart(
                "--dtype float64 needs the backend tensorflow, the only one that computes in "
                f"float64 throughout. Found: {self.backend}"
            )
        os.environ["TF_DETERMINISTIC_OPS"] = "1"  # or threads add in any order
        self.keras.backend.set_floatx(self.dtype)
        self.window = options.batch * options.accum_iters
        self.learn, self._test = self._digits()
        # How many digits of an epoch come before the stop, which is in the middle of a window.
        windows = len(self.learn[0]) // self.window // 2
        self._middle = windows * self.window + options.accum_iters // 2 * options.batch
        # A kind of file that keeps an optimizer's state.
        self._file = "stopped.h5" if self.keras.__version__.startswith("2.") else "stopped.keras"

    def _digits(self):
        """(images, labels) to learn from, in whole windows and a fixed order, and to test on."""
        import numpy
        from sklearn import datasets

        images, labels = datasets.load_digits(return_X_y=True)
        order = numpy.random.RandomState(0).permutation(len(labels))
        images, labels = (images / 16).astype(self.dtype).reshape(-1, 8, 8, 1)[order], labels[order]
        learn = LEARN - LEARN % self.window
        return (images[:learn], labels[:learn]), (images[LEARN:], labels[LEARN:])

    def build(self, accumulated):
        """The untrained network, in which no layer mixes samples or draws random numbers.

        By default, no layer has a kink (relu), where rounding alone can change a gradient visibly.
        """
        if accumulated:
            optimizer = self._ours(accum_iters=self.options.accum_iters, **self._arguments)
        else:
            optimizer = self._stock(**self._arguments, **self._stock_only)
        self.keras.utils.set_random_seed(self.options.seed)  # the same initial weights each time
        layers, activation = self.keras.layers, self.options.activation
        model = self.keras.Sequential(
            [
                self.keras.Input((8, 8, 1)),
                layers.Conv2D(16, 3, activation=activation),
                layers.Conv2D(32, 3, activation=activation),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )
        loss = self.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss)
        return model

    def fit(self, model, digits, batch, epochs, **more):
        """Train on the digits in their order. Return the loss of each epoch."""
        if epochs == 0:  # Keras 2 refuses 0
            return []
        settings = {"batch_size": batch, "epochs": epochs, "shuffle": False, "verbose": 0}
        return model.fit(*digits, **settings, **more).history.get("loss")

    def run_three(self):
        """The same training from big batches, from them accumulated, and from micro-batches."""
        return {
            "big batch": self._run("big batch", self.window),
            "accumulated": self._run("accumulated", self.options.batch, accumulated=True),
            "micro-batches": self._run("micro-batches", self.options.batch),
        }

    def _run(self, name, batch, accumulated=False):
        """One training from start to end, under a progress bar."""
        from tqdm import tqdm

        model, epochs = self.build(accumulated), self.options.epochs
        # No bar where there is no terminal.
        with tqdm(total=epochs, desc=f"{name:13}", unit="epoch", disable=None) as bar:
            progress = self.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: bar.update())
            losses = self.fit(model, self.learn, batch, epochs, callbacks=[progress])
        images, labels = self._test
        accuracy = (model.predict(images, verbose=0).argmax(axis=1) == labels).mean()
        updates = epochs * len(self.learn[0]) // batch
        if accumulated:
            updates = model.optimizer.completed_updates
        return Run(batch, updates, losses, accuracy, model.get_weights())

    # -- stopping and going on -------------------------------------------------------------------

    def stop(self, folder):
        """Train to the middle of a window, save, and return how many micro-batches are in it."""
        model, batch = self.build(accumulated=True), self.options.batch
        self.fit(model, self.learn, batch, self.options.epochs // 2)
        self.fit(model, [array[: self._middle] for array in self.learn], batch, 1)
        model.save(os.path.join(folder, self._file))
        return model.optimizer.window_position

    def go_on(self, folder):
        """Load the file, finish the epoch, train the epochs left. Return the weights."""
        ours, batch = {self._ours.__name__: self._ours}, self.options.batch
        file, epochs = os.path.join(folder, self._file), self.options.epochs
        model = self.keras.models.load_model(file, custom_objects=ours)
        self.fit(model, [array[self._middle :] for array in self.learn], batch, 1)
        self.fit(model, self.learn, batch, epochs - epochs // 2 - 1)
        return model.get_weights()


def go_on_in_new_process(options, folder):
    """The weights that a new process ends with, which starts from the file in the folder."""
    import numpy

    program = "from keras_accum import demo; demo.go_on_here()"
    command = [sys.executable, "-c", program, json.dumps(vars(options)), folder]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "universal_newlines": True}
    job = subprocess.run(command, **pipe)
    if job.returncode:
        raise RuntimeError(f"The new process failed:\n{job.stdout}")
    with numpy.load(os.path.join(folder, "weights.npz")) as weights:
        return list(weights.values())


def go_on_here():
    """What the new process does."""
    import numpy

    options, folder = argparse.Namespace(**json.loads(sys.argv[1])), sys.argv[2]
    numpy.savez(os.path.join(folder, "weights.npz"), *Demo(options).go_on(folder))


def _find_module(options):
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


def _remedy(options, error):
    """What to do if something isn't installed: Keras may only need to know the backend."""
    missing = getattr(error, "name", None)
    if missing in BACKENDS:
        others = [name for name in BACKENDS if name != missing and _is_installed(name)]
        if others:
            use = f"KERAS_BACKEND={others[0]} python -m keras_accum"
            return f"Keras's backend is {missing}. The backend that is installed: {use}"
    legacy = {"auto": uses_legacy_keras(), "keras3": False, "tf_keras": True}[options.host]
    extra = "legacy" if legacy else os.environ.get("KERAS_BACKEND") or "tensorflow"
    return f"Install what the demo needs: pip install 'keras_accum[{extra},demo]'"


def _is_installed(package):
    return importlib.util.find_spec(package) is not None


# -- the picture ---------------------------------------------------------------------------------


def draw(options, runs):
    """The loss curves as a figure: the accumulated curve is dashed, over that of the big batch."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    many, size = options.accum_iters, options.batch
    stock, ours = rule(options), OPTIMIZERS[options.optimizer][0]
    is_point = options.epochs == 1
    figure = Figure(figsize=(7, 4), dpi=200, layout="constrained")
    axes = figure.subplots()

    def plot(name, label, width, **style):
        if is_point:
            style.update(linestyle="none", marker="o", markersize=5 + width)
        epochs = range(1, options.epochs + 1)
        axes.plot(epochs, runs[name].losses, label=label, linewidth=width, **style)

    label = f"{stock}, batches of {size * many}"
    plot("big batch", label, 8, color="#9ecae1", solid_capstyle="round")
    label = f"{ours}(accum_iters={many}), batches of {size}"
    plot("accumulated", label, 2, color="#08306b", linestyle="--")
    label = f"{stock}, batches of {size}: {many} times as many updates"
    plot("micro-batches", label, 2, color="#d95f02")
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


def rule(options):
    """The name of the stock optimizer."""
    return OPTIMIZERS[options.optimizer][0].replace("Accumulate", "")


def save_picture(figure, path):
    """Save as a PNG of 64 colors, which makes a much smaller file."""
    from PIL import Image

    picture = io.BytesIO()
    figure.savefig(picture)
    Image.open(picture).convert("RGB").quantize(64).save(path, format="PNG", optimize=True)
