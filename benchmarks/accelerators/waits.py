"""How often PyTorch waits for a GPU in a train step, by the fake device of the tests."""

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import keras
from shared import contenders
from shared.contenders import DEFAULT, OWN, STOCK
from tables import FIT

from . import K

WIDTH = 8  # it changes no wait


def alone(optimizer):
    shapes = [(3 * WIDTH, WIDTH)] * 4 + [(64,)] * 300
    variables = [keras.Variable(keras.ops.zeros(shape)) for shape in shapes]
    gradients = [keras.ops.ones(shape) for shape in shapes]
    return lambda: optimizer.apply(gradients, variables)


def train_step(optimizer):
    # Random numbers need a device that is there.
    layers = [keras.layers.Dense(WIDTH, kernel_initializer="zeros") for _ in range(4)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers])
    model.compile(optimizer, "mse")
    x = keras.ops.ones((16, WIDTH))
    return lambda: model.train_step((x, x))


def measure(what="torch"):
    """Return {case: {contender: the waits in each micro-batch of its second window}}."""
    found = {**contenders.find("keras3"), DEFAULT: contenders.default("keras3")}
    made = {name: found[name].optimizer for name in (STOCK, DEFAULT, OWN)}
    return {
        case: {name: count(make, optimizer(K)) for name, optimizer in made.items()}
        for case, make in {"optimizer alone": alone, FIT: train_step}.items()
    }


def count(make, optimizer):
    from fake_device import Device

    with keras.device("gpu:0"), Device() as device:
        step, counts = make(optimizer), []
        for _ in range(2 * K):
            device.waits.clear()
            step()
            counts.append(len(device.waits))
    return counts[K:]
