"""Callbacks when an optimizer wraps several of ours: they reach all of them, or raise an error."""

import hosts
import pytest
from hosts import accum, keras
from training import (
    BIG,
    LENGTH,
    MICRO,
    WINDOWS,
    assert_same_training,
    compiled,
    dense_model,
    fit,
    train,
)

pytestmark = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)


def several(**more):
    """Adam for the last layer and SGD for the rest, all ours or all stock."""
    make = hosts.ours if more else hosts.stock
    default = make("SGD", learning_rate=2**-3, **more)
    last = make("Adam", learning_rate=2**-5, **more)
    mapped = keras.optimizers.OptimizerMap(default, {"model/out/.*": last, "out/.*": last})
    return keras.optimizers.MultiOptimizer(mapped)


def test_equals_big_batch():
    ours, stock = train(several(accum_iters=LENGTH), MICRO), train(several(), BIG)
    # MultiOptimizer has a counter of its own, of micro-batches.
    for trained in (ours, stock):
        trained.slots.pop("iteration")
    assert_same_training(ours, stock)


def test_partial_windows_of_all_are_closed():
    length = 5  # doesn't divide the micro-batches of an epoch
    model = compiled(dense_model(), several(accum_iters=length))
    fit(model, MICRO, epochs=2, callbacks=[accum.ApplyPartialWindow()])
    for optimizer in model.optimizer.optimizers:
        assert optimizer.window_position == 0
        assert optimizer.completed_updates == 2 * -(-WINDOWS * LENGTH // length)


@pytest.mark.parametrize("name", ["AccumulationMonitor", "MicroBatchWeights", "PythonGate"])
def test_callbacks_for_one_optimizer_refuse_several(name):
    arguments = {"batch_size": MICRO} if name == "AccumulationMonitor" else {}
    model = compiled(dense_model(), several(accum_iters=LENGTH))
    with pytest.raises(TypeError, match=f"{name} needs.*one optimizer.*MultiOptimizer"):
        fit(model, MICRO, callbacks=[getattr(accum, name)(**arguments)])
