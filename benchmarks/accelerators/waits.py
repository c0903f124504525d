"""How often PyTorch waits for a GPU in a train step, by the fake device of the tests."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

import keras
import numpy as np
from fake_device import Device, there
from shared import contenders

from . import tables

K = 5
SHAPES = {"4 variables": [(8, 8)] * 4, "300 variables": [(8,)] * 300}
NAMES = contenders.STOCK, contenders.DEFAULT, contenders.OWN


def measure():
    cases = {f"optimizer alone, {n}": lambda o, s=s: alone(o, s) for n, s in SHAPES.items()}
    cases[tables.FIT] = train_step
    found = contenders.find("keras3")
    found[contenders.DEFAULT] = contenders.default("keras3")
    rows = {
        case: {name: waits(make, found[name].optimizer(K)) for name in NAMES}
        for case, make in cases.items()
    }
    versions = {name: metadata.version(name) for name in ("torch", "keras")}
    text = json.dumps({"versions": versions, "k": K, "cases": rows}, indent=1)
    tables.path("torch").write_text(text + "\n", "utf-8")


def waits(make, optimizer):
    """The numbers of waits in the micro-batches of the second window."""
    with keras.device("gpu:0"), Device() as device:
        step, counts = make(optimizer), []
        for _ in range(2 * K):
            device.waits.clear()
            step()
            counts.append(len(device.waits))
    return counts[K:]


def alone(optimizer, shapes):
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in shapes]
    gradients = [there(np.ones(shape)) for shape in shapes]
    return lambda: optimizer.apply(gradients, variables)


def train_step(optimizer):
    # Random numbers need a device that is there.
    layers = [keras.layers.Dense(8, kernel_initializer="ones") for _ in range(4)]
    model = keras.Sequential([keras.layers.Input((8,)), *layers])
    model.compile(optimizer, "mse")
    x = there(np.ones((16, 8)))
    return lambda: model.train_step((x, x))
