"""One of two JAX processes: `python jax_worker.py ADDRESS RESULT RANK TRAININGS`.

Each process has half of each micro-batch; keras.distribution.DataParallel spans both. With
reduction="mean", the last window is left open, its state is read and set again, and then the window
is closed as it is. See test_distribution.py.
"""

import json
import os
import sys

import hosts
import jax
import numpy as np
from cases import ADAM
from hosts import keras
from processes import PARTIAL
from training import LENGTH, MICRO, compiled, data, dense_model, fit, slots, weights

address, result, rank, trainings = sys.argv[1:]
os.environ["XLA_FLAGS"] = ""  # one device per process
jax.config.update("jax_cpu_collectives_implementation", "gloo")
keras.distribution.initialize(address, num_processes=2, process_id=int(rank))
parallel = keras.distribution.DataParallel(auto_shard_dataset=False)  # a process has its own half
keras.distribution.set_distribution(parallel)
assert jax.process_count() == len(jax.devices()) == 2

share = [array[int(rank) :: 2] for array in data()]
for i, arguments in enumerate(json.loads(trainings)):
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, **ADAM.arguments, **arguments)
    model = compiled(dense_model(), optimizer)
    fit(model, MICRO // 2, share)
    fit(model, MICRO // 2, [a[:PARTIAL] for a in share], epochs=1)
    assert optimizer.window_position == (PARTIAL if optimizer.reduction == "mean" else 0)
    optimizer.set_state(optimizer.get_state())
    optimizer.apply_partial_window()
    np.savez(f"{result}-{rank}-{i}.npz", **weights(model), **slots(model))
