"""The programs that JAX compiles for slices: their memory, their layout and their devices.

Only JAX tells what a program will need, and only the train step of slices has it.
"""

import re

import hosts
import numpy as np
import pytest
from cases import quick_first, thorough
from hosts import keras
from zoo import arrays, network

if hosts.BACKEND != "jax":
    pytest.skip("about programs of JAX", allow_module_level=True)

import jax

from keras_accum.keras3.micro_batches import BackendStep


@pytest.fixture
def optimized():
    """Let XLA optimize, which the session for JAX leaves out to save time."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def programs_of(model, size, loss, *arrays, in_one=False):
    """Run the train step of a model of JAX, and return its compiled programs: of slices, or one."""
    kinds = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
    state = tuple([v.value for v in kind] for kind in (*kinds, model.metrics_variables))
    step = BackendStep(model, size, loss, hosts.accum.MicroBatches.host)
    step.begin_training()
    if in_one:  # as where JAX sees an accelerator
        step.compiles_itself = False
        return [jax.jit(lambda *arguments: step(*arguments)).lower(state, arrays).compile()]
    found, with_known = {}, step._with_known

    def noting(function, *known):
        program = with_known(function, *known)

        def run(*arguments):
            if function == step._run_phase:
                found[known] = program.lower(*arguments).compile()
            return program(*arguments)

        return run

    step._with_known = noting
    step(state, arrays)
    return list(found.values())


@thorough
def test_devices_take_parts_of_slices(two_devices, optimized):
    """No device gets samples of another device."""
    model, (x, y) = network(), arrays(8)
    model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(x[:2], y[:2], np.ones(2))  # Keras 3.10 fails without weights
    of_data = keras.distribution.distribution().get_data_layout((8, 3)).backend_layout
    placed = jax.device_put((x[:8], y[:8]), of_data)
    (program,) = programs_of(model, 2, "sample", *placed, in_one=True)
    assert "all-reduce" in program.as_text() and "all-gather" not in program.as_text()
    # Two devices can't take parts of one sample.
    (program,) = programs_of(model, 1, "sample", *placed, in_one=True)
    assert "all-gather" in program.as_text()


def test_convolutions_in_the_order_that_is_fast():
    """XLA on a CPU has a fast kernel for one order, and orders nothing in a loop by itself."""
    x, y = np.ones((12, 8, 8, 2), "float32"), np.ones((12, 4, 4, 3), "float32")
    kinds = keras.layers.Conv2D(4, 3), keras.layers.Conv2D(3, 3)
    model = keras.Sequential([keras.layers.Input((8, 8, 2)), *kinds])
    model.compile("sgd", "mse")
    model.train_on_batch(x[:1], y[:1])
    for in_one in False, True:
        programs = programs_of(model, 3, "sample", x, y, in_one=in_one)
        text = "".join(program.as_text() for program in programs)
        found = re.findall("dim_labels=(\\S+?),", text)
        assert len(found) == 5 and (set(found) == {"b01f_01io->b01f"}) == (not in_one), found


@quick_first("loss", ["auto", "batch"])
@pytest.mark.parametrize("in_one", [False, True])
def test_the_memory_is_that_of_a_slice(loss, in_one, optimized):
    """Neither the program nor its memory grows with the number of slices."""
    batch, parts = 2048, 16
    x, y = np.ones((batch, 8), "float32"), np.ones((batch, 1), "float32")
    hidden = [keras.layers.Dense(64, "tanh") for _ in range(4)]
    model = keras.Sequential([keras.layers.Input((8,)), *hidden, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.train_on_batch(x[:1], y[:1])
    (whole,) = programs_of(model, batch, loss, x, y, in_one=True)
    sliced = programs_of(model, batch // parts, loss, x, y, in_one=in_one)
    most = max(program.memory_analysis().temp_size_in_bytes for program in sliced)
    assert most < 2 / parts * whole.memory_analysis().temp_size_in_bytes
