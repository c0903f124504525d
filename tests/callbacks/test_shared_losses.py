"""Two threads that train with one loss."""

import threading

import hosts
import pytest
from cases import skip_file_on_keras2
from hosts import keras
from training import LENGTH, MICRO, assert_equal, compiled, dense_model, fit, weights

skip_file_on_keras2("callbacks that change a train step")


@pytest.mark.skipif(not hosts.IS_TORCH, reason="elsewhere, a loss is called in a trace alone")
def test_two_models_in_two_threads_share_a_loss():
    """Each sees its own calls, and both train as alone. The loss itself isn't changed."""
    both_are_in = threading.Barrier(2, timeout=60)

    class Slow(keras.losses.MeanSquaredError):
        def call(self, y_true, y_pred):
            assert "call" not in vars(self)
            if threading.current_thread() is not threading.main_thread():
                both_are_in.wait()
            return super().call(y_true, y_pred)

    loss, found = Slow(), []

    def train():
        optimizer = hosts.ours("SGD", accum_iters=LENGTH, reduction="weighted")
        model = compiled(dense_model(), optimizer, loss)
        fit(model, MICRO, epochs=1)
        found.append(weights(model))

    train()
    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for each in found[1:]:
        assert_equal(each, found[0])
