"""JAX over two processes, each with half of every micro-batch, equals the big batch."""

import json

import hosts
import numpy as np
import pytest
from cases import CASES, thorough
from processes import PARTIAL, run_together, two_free_ports
from training import (
    BIG,
    MICRO,
    assert_equal,
    assert_moved,
    compiled,
    data,
    dense_model,
    fit,
    slots,
    weights,
)

pytestmark = pytest.mark.skipif(hosts.BACKEND != "jax", reason="only JAX has jax.distributed")

# Each training: arguments of our optimizer, and callbacks of `fit`.
TRAININGS = [({}, []), ({"gate": "conditional"}, []), ({}, ["PythonGate"])]


def big_batch(case):
    """The stock optimizer in one process: three epochs, and the remaining micro-batches as one."""
    model = compiled(dense_model(), hosts.stock(case.name, **case.arguments))
    start = weights(model)
    fit(model, BIG)
    fit(model, PARTIAL * MICRO, [array[: PARTIAL * MICRO] for array in data()], epochs=1)
    assert_moved(start, weights(model))
    return {**weights(model), **slots(model)}


@thorough
@pytest.mark.parametrize("name", ["adam"])
def test_two_processes_of_jax(tmp_path, name):
    address = f"localhost:{two_free_ports()[0]}"
    script = hosts.TESTS / "jax_worker.py"
    command = [script, address, tmp_path / "worker"]
    run_together(([*command, r, name, json.dumps(TRAININGS)], {}) for r in range(2))
    expected = big_batch(CASES[name])
    for i in range(len(TRAININGS)):
        one, two = (dict(np.load(tmp_path / f"worker-{rank}-{i}.npz")) for rank in range(2))
        assert_equal(one, expected)
        assert_equal(two, one, rtol=0, atol=0)
