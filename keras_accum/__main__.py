"""See that accumulated micro-batches train as the big batch does: `python -m keras_accum`.

A small network learns scikit-learn's digits three times: from big batches, from the same batches
accumulated in micro-batches, and from the micro-batches alone. Then the accumulated run stops in
the middle of a window, is saved, and goes on in a new process. The exit status is 0 if the
accumulated run has the weights of the big batch and if stopping changed no bit of these weights.
"""

import argparse
import faulthandler
import logging
import math
import os
import re
import sys
import tempfile
import warnings

from keras_accum import demo

DIGITS = {"float64": 16, "float32": 7}  # what rounding leaves of a number

# How far rounding may lead from the big batch's weights. Micro-batches alone end some 0.3 away.
# The slope of relu jumps at 0, so rounding counts for much more: see benchmarks/float32.py.
TOLERANCE = {
    "float64": {"tanh": 1e-10, "relu": 1e-10},
    "float32": {"tanh": 1e-4, "relu": 5e-2},
}


def main(arguments=None):
    """Run the demo and return the exit status, which is 0 if the demo showed what it claims."""
    options = parse(arguments)
    try:
        return demonstrate(options)
    except demo.CannotStart as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130


def demonstrate(options):
    """Train in three ways, then stop and resume, and print the results."""
    print(f"The loss curves will be in {os.path.abspath(options.plot)}", flush=True)
    trainings = demo.Demo(options)
    print_what_is_trained(trainings)
    runs = trainings.run_three()
    print_table(options, runs)
    demo.save_picture(demo.draw(options, runs), options.plot)
    with tempfile.TemporaryDirectory() as folder:
        into = f"{count(trainings.stop(folder), 'micro-batch')} into a window"
        saved = f"Stopped {into} of {options.accum_iters} and saved."
        print(f"\n{saved} A new process goes on ...", flush=True)
        resumed = demo.go_on_in_new_process(options, folder)

    accumulated, tolerance = runs["accumulated"], TOLERANCE[trainings.dtype][options.activation]
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


# -- the options ---------------------------------------------------------------------------------


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
    optimizers = list(demo.OPTIMIZERS)
    dtype_help = "the precision; auto is float64 on TensorFlow and float32 elsewhere"
    png = {"metavar": "PATH", "type": writable_png, "default": "keras_accum.png"}
    option("--epochs", type=whole(1), default=15, help="passes over the digits")
    option("--batch", type=whole(1), default=10, help="digits in a micro-batch")
    option("--accum-iters", type=whole(2), default=5, help="micro-batches in a window")
    option("--optimizer", choices=optimizers, default="adam", help="the rule to train with")
    option("--dtype", choices=dtypes, default="auto", help=dtype_help)
    option("--activation", choices=["tanh", "relu"], default="tanh", help="of the network")
    option("--seed", type=whole(0, 2**32 - 1), default=0, help="of the initial weights")
    option("--host", choices=hosts, default="auto", help="the Keras to use")
    option("--plot", **png, help="where the loss curves go")
    options = parser.parse_args(arguments)
    window, most = options.batch * options.accum_iters, demo.LEARN
    if window > most:
        parser.error(f"--batch times --accum-iters must be at most {most}. Received: {window}")
    return options


def whole(least, most=math.inf):
    """The type of an option that is a whole number from `least` to `most`."""
    allowed = f"at least {least}" if most == math.inf else f"from {least} to {most}"

    def convert(text):
        # int() takes more, such as "1_000".
        if re.match(r"[+-]?\d+$", text, re.ASCII) and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"must be a whole number, {allowed}. Received: {text}")

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


# -- the texts -----------------------------------------------------------------------------------


def print_what_is_trained(trainings):
    """Print two lines on what is trained and how precisely."""
    options, keras, dtype = trainings.options, trainings.keras, trainings.dtype
    backend = demo.BACKENDS[trainings.backend]
    digits, epochs = count(len(trainings.learn[0]), "digit"), count(options.epochs, "epoch")
    advice = "Only TensorFlow computes in float64 throughout."
    if backend == "TensorFlow":
        advice = {
            "float64": "Most trainings use float32, which is --dtype float32.",
            "float32": "Rounding all but disappears with --dtype float64.",
        }[dtype]
    print(
        f"{keras.__name__} {keras.__version__} on {backend}: {demo.rule(options)}, {digits}, "
        f"{epochs}, same initial weights, same order\n"
        f"{dtype} ({DIGITS[dtype]} decimal digits), {options.activation}. {advice}\n",
        flush=True,
    )


def print_table(options, runs):
    """Print what each run held in memory at a time, and where it got.

    The difference is the largest one of a weight from the big batch's.
    """
    heads = "batch in memory", "updates", "training loss", "test accuracy", "weight difference"
    row = "{:13}" + "".join(f"{{:>{len(head) + 2}}}" for head in heads)
    print(row.format("", *heads))
    for name, run in runs.items():
        off = difference(run.weights, runs["big batch"].weights)
        loss, accuracy = f"{run.losses[-1]:.4f}", f"{run.accuracy:.1%}"
        print(row.format(name, run.batch, run.updates, loss, accuracy, f"{off:.1e}"))
    print(
        f"Plain micro-batches make {options.accum_iters} times as many updates, so their loss may "
        "be lower."
    )


def difference(some, others):
    """The largest difference between the weights of two models."""
    return max(abs(a - b).max() for a, b in zip(some, others))


def count(number, noun):
    """A number with its noun in singular or plural."""
    plural = {"micro-batch": "micro-batches"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"


if __name__ == "__main__":
    hide_logs()
    sys.exit(main())
