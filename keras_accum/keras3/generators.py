"""All random generators outside of a model: Python's, NumPy's, Keras's and PyTorch's."""

import importlib
import random

import keras
from keras import ops

from keras_accum import host
from keras_accum.host import snapshot

# Keras keeps the generator for draws without a seed in its global state, under this name.
_seeds = importlib.import_module(keras.random.SeedGenerator.__module__)
host.check_members(keras, _seeds, ["global_state", "global_seed_generator"])
_NAME = "global_seed_generator"
if host.parse_version(keras.__version__) >= (3, 13):
    host.check_members(keras, _seeds, ["GLOBAL_SEED_GENERATOR"])
    _NAME = _seeds.GLOBAL_SEED_GENERATOR


def remember_generators():
    """Return functions that put back the present states, also in a graph."""
    state = _seeds.global_state
    generator = state.get_global_attribute(_NAME)
    seed = None if generator is None else ops.copy(generator.state)

    def put_back():
        state.set_global_attribute(_NAME, generator)
        if generator is not None:
            generator.state.assign(seed)

    return [*snapshot.remember_generators(), put_back, *_remember_torch()]


def make_generator():
    """Make Keras's generator if it is missing: a graph would make one in each pass.

    Python's numbers, from which Keras takes its seed, stay as they are.
    """
    before = random.getstate()
    _seeds.global_seed_generator()
    random.setstate(before)


if keras.backend.backend() == "torch":
    import torch

    def _remember_torch():
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        of_cpu = torch.get_rng_state()
        return [
            lambda: torch.set_rng_state(of_cpu),
            lambda: torch.cuda.set_rng_state_all(devices) if devices else None,
        ]

else:
    _remember_torch = list
