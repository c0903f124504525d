"""A model saved in the middle of a window goes on in a new process, to the bit."""

import os
import subprocess
import sys

import hosts
import numpy as np
import pytest
from cases import few_cases
from training import LENGTH, MICRO, assert_moved, batches, compiled, dense_model, slots, weights

STOP = LENGTH + 2  # two micro-batches into the second window
KIND = "keras" if hosts.IS_KERAS3 else "h5"  # the file that keeps an optimizer's state


def go_on(model, start, stop=None):
    for x, y in batches(MICRO)[start:stop]:
        model.train_on_batch(x, y)


def everything(model):
    """Weights and slots in their order; paths change with a loaded model's scope."""
    return [*weights(model).values(), *slots(model).values()]


def in_new_process(path, results):
    """What the new process does; `python test_saving.py PATH RESULTS`."""
    ours = [c for c in vars(hosts.accum).values() if getattr(c, "__name__", "").endswith("late")]
    custom_objects = {c.__name__: c for c in ours}
    hosts.keras.backend.set_floatx(hosts.FLOATX)
    model = hosts.keras.models.load_model(path, custom_objects=custom_objects)
    assert model.optimizer.window_position == 2
    go_on(model, STOP)
    np.savez(results, *everything(model))


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@few_cases
def test_goes_on_in_a_new_process(case, tmp_path):
    model = compiled(dense_model(), hosts.ours(case.name, accum_iters=LENGTH, **case.arguments))
    start = weights(model)
    go_on(model, 0, STOP)
    path, results = tmp_path / f"model.{KIND}", tmp_path / "results.npz"
    model.save(path)
    go_on(model, STOP)
    assert_moved(start, weights(model), by=0.01)

    subprocess.run([sys.executable, __file__, path, results], env=os.environ, check=True)
    with np.load(results) as file:
        actual = list(file.values())
    expected = everything(model)
    assert len(actual) == len(expected)
    for some, others in zip(actual, expected):
        np.testing.assert_array_equal(some, others)


if __name__ == "__main__":
    in_new_process(*sys.argv[1:])
