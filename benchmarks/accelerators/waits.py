"""How often PyTorch waits for a GPU in a train step, by the fake device of the tests."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import keras
from shared import contenders
from shared.contenders import DEFAULT, OWN, STOCK

from . import tables

K = 5


def cases(width=8):
    """Return {case: a function from an optimizer to a train step}. The width changes no wait."""
    shapes = [(3 * width, width)] * 4 + [(64,)] * 300
    return {
        "optimizer alone": lambda optimizer: alone(optimizer, shapes),
        tables.FIT: lambda optimizer: train_step(optimizer, width),
    }


def alone(optimizer, shapes):
    variables = [keras.Variable(keras.ops.zeros(shape)) for shape in shapes]
    gradients = [keras.ops.ones(shape) for shape in shapes]
    return lambda: optimizer.apply(gradients, variables)


def train_step(optimizer, width):
    # Random numbers need a device that is there.
    layers = [keras.layers.Dense(width, kernel_initializer="zeros") for _ in range(4)]
    model = keras.Sequential([keras.layers.Input((width,)), *layers])
    model.compile(optimizer, "mse")
    x = keras.ops.ones((16, width))
    return lambda: model.train_step((x, x))


def optimizers():
    """Return {contender: a function that makes its optimizer}."""
    found = {**contenders.find("keras3"), DEFAULT: contenders.default("keras3")}
    return {name: found[name].optimizer for name in (STOCK, DEFAULT, OWN)}


def count():
    """Return {case: {contender: the waits in each micro-batch of its second window}}."""
    return {
        case: {name: _count(make, optimizer(K)) for name, optimizer in optimizers().items()}
        for case, make in cases().items()
    }


def _count(make, optimizer):
    from fake_device import Device

    with keras.device("gpu:0"), Device() as device:
        step, counts = make(optimizer), []
        for _ in range(2 * K):
            device.waits.clear()
            step()
            counts.append(len(device.waits))
    return counts[K:]


def measure():
    versions = {name: metadata.version(name) for name in ("torch", "keras")}
    text = json.dumps({"versions": versions, "k": K, "cases": count()}, indent=1)
    tables.path("torch").write_text(text + "\n", "utf-8")
