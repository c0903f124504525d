"""What XLA compiles for H100s that aren't there: no branch in the default, and no copy anywhere.

Four of them reduce gradients once in an update of `MicroBatches`.
`nox -s accelerators` installs XLA's plugin for CUDA, and sets KERAS_ACCUM_TEST_ACCELERATORS.
"""

import os
import sys

import hosts
import pytest
from hosts import keras

if not os.environ.get("KERAS_ACCUM_TEST_ACCELERATORS"):
    pytest.skip("only `nox -s accelerators` has XLA's plugin", allow_module_level=True)
sys.path.append(str(hosts.PROJECT / "benchmarks"))

import tables
from accelerators import K, collectives, programs
from accelerators import compiled as compiler
from shared.contenders import CONDITIONAL, DECIDE, DEFAULT, IN_SLICES, OWN, STOCK


@pytest.fixture(scope="module")
def compiled():
    made = programs.alone(programs.LARGE, [DEFAULT, CONDITIONAL, DECIDE, STOCK, OWN])
    (device,) = compiler.find("gpu")
    return {name: compiler.figures(device, program) for name, program in made.items()}


@pytest.mark.parametrize("name", [STOCK, DEFAULT, DECIDE])
def test_there_is_no_branch_and_the_host_waits_for_nothing(compiled, name):
    """Neither is there a copy, nor memory for one."""
    row = compiled[name]
    assert row["conditionals"] == row["loops"] == row["temporary"] == 0
    assert row["waits"] == row["copies"] == [0, 0]


def test_words_of_a_parameter(compiled):
    """A word is 4 bytes in the device's memory. An addition reads two, and writes one."""
    assert compiled[STOCK]["words"] == [7, 7]
    assert compiled[DEFAULT]["words"] == [9, 9]
    assert compiled[DECIDE]["words"] == [3, 9]
    assert compiled[CONDITIONAL]["words"] == [3, 11]


def test_a_conditional_is_a_loop_that_copies_nothing(compiled):
    row = compiled[CONDITIONAL]
    assert (row["conditionals"], row["loops"], row["temporary"]) == (0, 1, 0)
    assert row["copies"] == [0, 0]
    assert row["waits"] == [1, 2]  # the loop's condition


def test_what_is_counted_is_found_in_another_program(compiled):
    """Keras's own accumulation has conditionals, and copies what they return."""
    row = compiled[OWN]
    assert row["conditionals"] >= 3 and row["temporary"] > 3
    assert min(row["waits"]) >= 3 and min(row["copies"]) >= 15


def test_micro_batches_reduces_once_in_an_update():
    """In the loop over slices, nothing is reduced; AdamAccumulate reduces in each micro-batch."""
    names = DEFAULT, OWN
    found = collectives.count("gpu", tables.DATA_PARALLEL, names)
    once = {"all-reduce": 1, "in a loop": 0, "bytes": 4.0}
    assert found.pop(IN_SLICES) == once
    assert found == dict.fromkeys(names, {"all-reduce": K, "in a loop": 0, "bytes": 4.0 * K})


def test_micro_batches_reduces_fewer_bytes_with_split_weights():
    """In the loop are the sums of products with a split kernel, not gradients."""
    found = collectives.count("gpu", tables.MODEL_PARALLEL, [DEFAULT])
    moved = {name: row["bytes"] for name, row in found.items()}
    assert moved[DEFAULT] > 4 * moved[IN_SLICES]


def test_bfloat16_halves_what_is_reduced():
    """XLA rounds gradients for it, and also the sums of `MicroBatches`, which are float32."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        found = collectives.count("gpu", tables.DATA_PARALLEL, [STOCK, DEFAULT])
    finally:
        keras.config.set_dtype_policy(hosts.FLOATX)
    moved = {name: row["bytes"] for name, row in found.items()}
    assert moved == {STOCK: 2.0, DEFAULT: 2.0 * K, IN_SLICES: 2.0}
