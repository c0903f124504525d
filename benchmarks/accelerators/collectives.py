"""How often four devices exchange gradients in an update of `fit` on JAX, and how many bytes.

The step is compiled for H100s, TPU v5e and CPUs, with Keras's own layouts.
"""

import os
from collections import Counter

# Before the first import of JAX: Keras's layouts are those of four virtual CPUs.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

from . import K, compiled, hlo, programs  # `compiled` before JAX, because it says where JAX runs

# isort: split
import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from shared.contenders import DEFAULT, IN_SLICES, OWN, STOCK
from tables import DATA_PARALLEL, MODEL_PARALLEL, WHERE

NAMES = STOCK, DEFAULT, OWN  # `programs.fit` adds MicroBatches


def data_parallel():
    return keras.distribution.DataParallel(keras.distribution.DeviceMesh((4,), ["batch"]))


def model_parallel():
    """Split the first and last kernels by columns, and the one between by rows."""
    mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"])
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*layer_[02]/kernel"] = (None, "model")
    layout[".*layer_1/kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


DISTRIBUTIONS = {DATA_PARALLEL: data_parallel, MODEL_PARALLEL: model_parallel}


def count(platform, distribution, names=NAMES):
    """Return {contender: what its update exchanges}."""
    spread = DISTRIBUTIONS[distribution]()
    keras.distribution.set_distribution(spread)
    try:
        made = programs.fit(names, 1024, 3, 64)
        found = jax.devices() if platform == "cpu" else compiled.find(platform, 4)
        mesh = spread.device_mesh
        mesh = Mesh(np.reshape(found, mesh.shape), mesh.axis_names)
        return {name: exchanged(name, program, mesh) for name, program in made.items()}
    finally:
        keras.distribution.set_distribution(None)


def exchanged(name, program, mesh):
    """Return how often an update exchanges, by kind and in a loop, and bytes per parameter."""
    texts = [text_of(program, decision, mesh) for decision in program.decisions]
    inside = hlo.collectives(hlo.read(texts[0]), is_update=False) * (K - 1)
    if name in (STOCK, IN_SLICES):  # the program of a whole update
        inside = []
    kinds, in_loop, moved = Counter(), 0, 0
    for kind, size, is_in_loop in inside + hlo.collectives(hlo.read(texts[-1]), is_update=True):
        times = K if is_in_loop else 1  # the only loop is that over slices
        kinds[kind] += times
        in_loop += times * is_in_loop
        moved += times * size
    parameters = sum(weight.size for weight in program.donated[0])
    return {**kinds, "in a loop": in_loop, "bytes": round(moved / parameters, 2)}


def text_of(program, decision, mesh):
    """Return the text of a program whose arrays have Keras's layouts on another mesh."""

    def on_mesh(array, spec):
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))

    def as_in_keras(array):
        return on_mesh(array, getattr(array.sharding, "spec", PartitionSpec()))

    state = tuple(jax.tree.map(as_in_keras, program.donated))
    data = jax.tree.map(lambda array: on_mesh(array, PartitionSpec("batch")), program.data)
    step = jax.jit(
        lambda *arguments: program.step(decision, *arguments),
        donate_argnums=0,
        out_shardings=(None, jax.tree.map(lambda array: array.sharding, state)),
    )
    return step.lower(state, data).compile().as_text()


def measure(what):
    return {
        distribution: {platform: count(platform, distribution) for platform in WHERE}
        for distribution in DISTRIBUTIONS
    }
