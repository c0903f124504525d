"""What Python warns of in a training: nothing that it doesn't warn of with a stock optimizer."""

import warnings

import hosts
import pytest
from cases import skip_file_on_keras2
from training import compiled, dense_model, fit

skip_file_on_keras2("NumPy 2")


@pytest.mark.parametrize(
    "callback", [None, "ApplyPartialWindow", "AccumulationMonitor", "PythonGate"]
)
def test_numpy_has_nothing_to_warn_of(callback):
    """NumPy 2 warns if a Keras variable or a PyTorch tensor is given to `np.array`."""
    model = compiled(dense_model(), hosts.ours("Adam", accum_iters=2))
    callbacks = [getattr(hosts.accum, callback)()] if callback else []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*__array__")  # which conftest.py ignores, for Keras's
        fit(model, 2, epochs=1, callbacks=callbacks)
        state = model.optimizer.get_state()
    assert state["completed_updates"] > 0
